// Every __global__ function of the library, so that a plan can load them all: CUDA loads a kernel at its first launch
// otherwise, which may allocate, wait for the device, and is forbidden while a stream is being captured.
#pragma once

namespace kda::cuda {

struct KernelEntry {
  explicit KernelEntry(const void* kernel) : function(kernel), next(first) { first = this; }
  const void* function;
  const KernelEntry* next;
  static inline const KernelEntry* first = nullptr;  // set before any constructor runs
};

template <auto Kernel>
inline const KernelEntry kKernelEntry{reinterpret_cast<const void*>(Kernel)};

// To be called where `Kernel` is launched: naming the entry puts it into the list when the program starts.
template <auto Kernel>
void list_kernel() {
  (void)&kKernelEntry<Kernel>;
}

}  // namespace kda::cuda
