// Index lists of a launch read and replaced, wherever they lie: in host memory, or on the GPU in builds that have one.
#pragma once

#include <vector>

#include "core/views.h"
#if KDA_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace planted {

// The lists made up for one call; at most four are needed. They live until this is destroyed, which waits for the GPU.
class Lists {
 public:
  static std::vector<int64_t> read(const kda::IndexView& list) {
    std::vector<int64_t> values;
    std::vector<std::byte> copy;
    kda::IndexView host = list;
    if (list.count > 0 && is_on_gpu(list)) {
      copy.resize(static_cast<size_t>((list.count - 1) * list.stride + 1) * (list.wide ? 8 : 4));
#if KDA_WITH_CUDA
      (void)cudaMemcpy(copy.data(), list.data, copy.size(), cudaMemcpyDeviceToHost);
#endif
      host.data = copy.data();
    }
    for (int64_t i = 0; i < list.count; ++i) values.push_back(host.at(i));
    return values;
  }

  // A list of these values where `like` lies.
  kda::IndexView store(std::vector<int64_t> values, const kda::IndexView& like) {
    std::vector<int64_t>& kept = values_[used_] = std::move(values);
    kda::IndexView view;
    view.data = kept.data();
    view.wide = true;
    view.count = static_cast<int64_t>(kept.size());
#if KDA_WITH_CUDA
    if (is_on_gpu(like)) {
      (void)cudaMalloc(&device_[used_], kept.size() * 8 + 8);
      (void)cudaMemcpy(device_[used_], kept.data(), kept.size() * 8, cudaMemcpyHostToDevice);
      view.data = device_[used_];
    }
#else
    (void)like;
#endif
    ++used_;
    return view;
  }

  template <class Change>
  kda::IndexView changed(const kda::IndexView& list, const Change& change) {
    if (!list.present()) return list;
    std::vector<int64_t> values = read(list);
    for (int64_t& value : values) value = change(value);
    return store(std::move(values), list);
  }

  Lists() = default;
  Lists(const Lists&) = delete;
  Lists& operator=(const Lists&) = delete;
#if KDA_WITH_CUDA
  ~Lists() {
    if (device_[0] != nullptr) (void)cudaDeviceSynchronize();
    for (void* memory : device_) (void)cudaFree(memory);
  }
#endif

 private:
  static bool is_on_gpu(const kda::IndexView& list) {
#if KDA_WITH_CUDA
    cudaPointerAttributes attributes;
    return cudaPointerGetAttributes(&attributes, list.data) == cudaSuccess && attributes.type == cudaMemoryTypeDevice;
#else
    (void)list;
    return false;
#endif
  }

  static constexpr int kMostLists = 4;
  std::vector<int64_t> values_[kMostLists];
#if KDA_WITH_CUDA
  void* device_[kMostLists] = {};
#endif
  int used_ = 0;
};

}  // namespace planted
