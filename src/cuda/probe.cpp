#include "cuda/probe.h"

#include <cuda_runtime_api.h>

#include <atomic>

namespace kda {

namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, which, device) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return value;
}

}  // namespace

int cuda_probe_device(int wanted) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    (void)cudaGetLastError();  // no driver, or no device: not an error of the program
    return -1;
  }
  if (wanted >= 0) return wanted < count ? wanted : -1;
  int current = 0;
  if (cudaGetDevice(&current) != cudaSuccess) {
    (void)cudaGetLastError();
    return -1;
  }
  return current;
}

int cuda_compute_capability(int device) {
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
         attribute(cudaDevAttrComputeCapabilityMinor, device);
}

int cuda_shared_memory_limit(int device) { return attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device); }

bool cuda_launches_early() {
  static std::atomic<int> known[64];  // per device: 0 = not asked, 1 = no, 2 = yes
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= 64) return false;
  int answer = known[device].load(std::memory_order_relaxed);
  if (answer == 0) {
    answer = cuda_compute_capability(device) >= 90 ? 2 : 1;
    known[device].store(answer, std::memory_order_relaxed);
  }
  return answer == 2;
}

}  // namespace kda
