#include "cuda/load.h"

#include <cuda_runtime_api.h>

#include <mutex>
#include <set>

#include "cuda/kernel_list.h"
#include "cuda/probe.h"

namespace kda {
namespace {

Status load_all(int device) {
  const int limit = cuda_shared_memory_limit(device);
  for (const cuda::KernelEntry* entry = cuda::KernelEntry::first; entry != nullptr; entry = entry->next) {
    cudaFuncAttributes attributes;  // asking for them loads the kernel
    if (cudaFuncGetAttributes(&attributes, entry->function) != cudaSuccess) return KDA_E_CUDA_DEVICE;
    // Static shared memory counts against the same limit.
    const int dynamic = limit - static_cast<int>(attributes.sharedSizeBytes);
    if (cudaFuncSetAttribute(entry->function, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic) != cudaSuccess) {
      return KDA_E_CUDA_DEVICE;
    }
  }
  return KDA_OK;
}

}  // namespace

Status cuda_load_kernels(int device) {
  static std::mutex mutex;
  static std::set<int> loaded;
  const std::lock_guard lock(mutex);
  if (loaded.count(device) != 0) return KDA_OK;
  int current = 0;
  if (cudaGetDevice(&current) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) return KDA_E_CUDA_DEVICE;
  const Status status = load_all(device);
  if (cudaSetDevice(current) != cudaSuccess) return KDA_E_CUDA_DEVICE;
  if (status == KDA_OK) loaded.insert(device);
  return status;
}

}  // namespace kda
