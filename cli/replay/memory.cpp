#include "cli/replay/memory.h"

#if KDA_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace kda::cli::replay {

#if KDA_WITH_CUDA
namespace {

class CudaMemory final : public CallMemory {
 public:
  CudaMemory() = default;
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;
  ~CudaMemory() override { release(); }

  io::Outcome upload(std::span<HostTensor* const> tensors) override {
    int device = 0;
    if (const cudaError_t e = cudaGetDevice(&device)) return failure("finding the GPU", e);
    for (HostTensor* tensor : tensors) {
      void* copy = nullptr;
      const size_t bytes = tensor->bytes().size();
      if (const cudaError_t e = cudaMalloc(&copy, bytes == 0 ? 1 : bytes)) return failure("allocating on the GPU", e);
      copies_.push_back(copy);
      if (const cudaError_t e = cudaMemcpy(copy, tensor->bytes().data(), bytes, cudaMemcpyHostToDevice)) {
        return failure("copying to the GPU", e);
      }
      DLTensor& view = *tensor->mutable_view();
      view.data = copy;
      view.device = {kDLCUDA, device};
    }
    return io::Done{};
  }

  io::Outcome download(std::span<HostTensor* const> tensors) override {
    if (const cudaError_t e = cudaDeviceSynchronize()) return failure("running on the GPU", e);
    for (HostTensor* tensor : tensors) {
      DLTensor& view = *tensor->mutable_view();
      const std::span<std::byte> bytes = tensor->bytes();
      if (const cudaError_t e = cudaMemcpy(bytes.data(), view.data, bytes.size(), cudaMemcpyDeviceToHost)) {
        return failure("copying from the GPU", e);
      }
      view.data = bytes.data();
      view.device = {kDLCPU, 0};
    }
    release();
    return io::Done{};
  }

 private:
  static io::Error failure(const char* what, cudaError_t e) {
    return io::Error{std::string(what) + ": " + cudaGetErrorString(e)};
  }
  void release() {
    for (void* copy : copies_) cudaFree(copy);
    copies_.clear();
  }
  std::vector<void*> copies_;
};

}  // namespace

std::unique_ptr<CallMemory> memory_for(int backend) {
  if (backend == KDA_BACKEND_CUDA) return std::make_unique<CudaMemory>();
  return std::make_unique<CallMemory>();
}
#else
std::unique_ptr<CallMemory> memory_for(int) { return std::make_unique<CallMemory>(); }
#endif

}  // namespace kda::cli::replay
