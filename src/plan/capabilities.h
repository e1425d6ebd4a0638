// What this build and this machine offer to the planner.
#pragma once

#include <string_view>
#include <vector>

#include "core/problem.h"
#include "core/status.h"

namespace kda {

constexpr int kBackendCount = 3;
// In the order AUTO prefers them.
constexpr Backend kBackends[kBackendCount] = {Backend::cuda, Backend::cpu, Backend::reference};
const char* name_of(Backend backend);

struct Capabilities {
  int usable_cores = 1;
  bool cuda_built = false;
  int gpu = 0;  // compute capability times 10 (90 = Hopper) of the context's device; 0 = no usable GPU
  int gpu_device = -1;
  bool gpu_has_code = false;      // the build has machine code for it
  bool gpu_is_described = false;  // by the caller; plans are made for it, calls refused

  // Null if the backend can run, else why not.
  const char* missing(Backend backend) const;
};

// Machine code for GPUs in this build.
struct GpuCode {
  std::string_view architecture;  // "90a": for sm_90a
  bool ran_on_hardware;           // false: compiled only, see docs/gpu.md
};
std::vector<GpuCode> built_gpu_code();

// As in kda_context_options. cuda_device: 0 = the current device, n = device n-1, -1 = do not look for one.
Capabilities probe_capabilities(int cuda_device, int described_gpu);

// Workspace for index lists in host memory, where the backend's kernels cannot read them there.
int64_t backend_list_bytes(Backend backend, const Problem& problem);

// Loads the backend's kernels on its device, so that no call has to: once a device, when the first plan is made for it.
Status prepare_backend(Backend backend, const Capabilities& capabilities);

}  // namespace kda
