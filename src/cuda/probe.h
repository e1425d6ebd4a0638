// What the CUDA driver and the GPUs of this machine are. Nothing here creates a CUDA context except where said.
#pragma once

#include <string_view>
#include <vector>

namespace kda {

// Machine code in this build, from the option KDA_CUDA_ARCHITECTURES.
struct CudaArchitecture {
  std::string_view name;  // "90a": for sm_90a
  bool ran_on_hardware;   // false: compiled only, see docs/gpu.md
};
std::vector<CudaArchitecture> cuda_architectures();

// Whether a GPU of this compute capability (times 10) can run that code: binaries serve later minor versions of their
// major version, those with a suffix only their own.
bool cuda_has_code_for(int compute_capability);

// The device to use: `wanted` (-1 = the current one), or -1 if there is no driver or no such device.
int cuda_probe_device(int wanted);

// Compute capability times 10 (90 = Hopper); 0 if unknown.
int cuda_compute_capability(int device);

// Most bytes of shared memory a block may ask for.
int cuda_shared_memory_limit(int device);

// Whether the current device can start a kernel before the one ahead of it ends (Hopper and later).
bool cuda_launches_early();

// Whether the current device runs verify_stream_kernel, which is there as sm_90a code only.
bool cuda_streams_verify();

// Multiprocessors of the current device.
int cuda_multiprocessors();

}  // namespace kda
