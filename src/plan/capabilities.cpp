#include "plan/capabilities.h"

#include <algorithm>
#include <thread>

#if KDA_WITH_CUDA
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
  if (!cuda_built) return "this build has no CUDA backend";
  return gpu == 0 ? "no usable GPU" : nullptr;
}

Capabilities probe_capabilities(int cuda_device) {
  Capabilities found;
  found.usable_cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
#if KDA_WITH_CUDA
  found.cuda_built = true;
  if (cuda_device >= 0) {
    found.gpu_device = cuda_probe_device(cuda_device - 1);
    found.gpu = found.gpu_device < 0 ? 0 : cuda_compute_capability(found.gpu_device);
  }
#else
  (void)cuda_device;
#endif
  return found;
}

}  // namespace kda
