#include "plan/capabilities.h"

#include <algorithm>
#include <thread>

#include "cuda/workspace.h"
#if KDA_WITH_CUDA
#include "cuda/load.h"
#include "cuda/probe.h"
#endif

namespace kda {

const char* name_of(Backend backend) {
  switch (backend) {
    case Backend::reference:
      return "reference";
    case Backend::cpu:
      return "cpu";
    case Backend::cuda:
      return "cuda";
  }
  return "";
}

const char* Capabilities::missing(Backend backend) const {
  if (backend != Backend::cuda) return nullptr;
  if (gpu_is_described) return nullptr;
  if (!cuda_built) return "this build has no CUDA backend";
  if (gpu == 0) return "no usable GPU";
  return gpu_has_code ? nullptr : "this build has no machine code for this GPU (`kda info` lists what it has)";
}

std::vector<GpuCode> built_gpu_code() {
  std::vector<GpuCode> found;
#if KDA_WITH_CUDA
  for (const CudaArchitecture& built : cuda_architectures()) found.push_back({built.name, built.ran_on_hardware});
#endif
  return found;
}

Capabilities probe_capabilities(int cuda_device, int described_gpu) {
  Capabilities found;
  found.usable_cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
#if KDA_WITH_CUDA
  found.cuda_built = true;
  if (cuda_device >= 0 && described_gpu == 0) {
    found.gpu_device = cuda_probe_device(cuda_device - 1);
    found.gpu = found.gpu_device < 0 ? 0 : cuda_compute_capability(found.gpu_device);
    found.gpu_has_code = found.gpu != 0 && cuda_has_code_for(found.gpu);
  }
#else
  (void)cuda_device;
#endif
  if (described_gpu != 0) {
    found.gpu = described_gpu;
    found.gpu_is_described = true;
  }
  return found;
}

int64_t backend_list_bytes(Backend backend, const Problem& problem) {
  return backend == Backend::cuda ? host_list_bytes(problem) : 0;
}

Status prepare_backend(Backend backend, const Capabilities& capabilities) {
#if KDA_WITH_CUDA
  if (backend == Backend::cuda && !capabilities.gpu_is_described) return cuda_load_kernels(capabilities.gpu_device);
#else
  (void)backend, (void)capabilities;
#endif
  return KDA_OK;
}

}  // namespace kda
