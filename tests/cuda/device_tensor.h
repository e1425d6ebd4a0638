// Tensors in device memory for tests of the CUDA backend through the C ABI.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kda/kda.h"

namespace cuda_test {

inline void must(cudaError_t e) { ASSERT_EQ(e, cudaSuccess) << cudaGetErrorString(e); }

inline bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

// An owned, compact device tensor of elements T (float, uint16_t for bf16, int32_t, uint8_t, uint32_t).
template <class T>
class DeviceTensor {
 public:
  explicit DeviceTensor(std::vector<int64_t> shape) : shape_(std::move(shape)) {
    for (int64_t n : shape_) count_ *= static_cast<size_t>(n);
    must(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<size_t>(count_, 1) * sizeof(T)));
    must(cudaMemset(data_, 0xff, count_ * sizeof(T)));  // NaN, or -1
    tensor_.data = data_;
    tensor_.device = {kDLCUDA, 0};
    tensor_.ndim = static_cast<int32_t>(shape_.size());
    tensor_.shape = shape_.data();
    const uint8_t code = std::is_same_v<T, float>                                    ? kDLFloat
                         : std::is_same_v<T, uint16_t>                               ? kDLBfloat
                         : std::is_same_v<T, uint8_t> || std::is_same_v<T, uint32_t> ? kDLUInt
                                                                                     : kDLInt;
    tensor_.dtype = {code, 8 * sizeof(T), 1};
  }
  DeviceTensor(std::vector<int64_t> shape, const std::vector<T>& values) : DeviceTensor(std::move(shape)) {
    set(values);
  }
  ~DeviceTensor() { cudaFree(data_); }
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;

  const DLTensor* dl() const { return &tensor_; }
  T* data() const { return data_; }
  size_t count() const { return count_; }
  void set(const std::vector<T>& values) {
    ASSERT_EQ(values.size(), count_);
    must(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> get() const {
    std::vector<T> values(count_);
    must(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  std::vector<int64_t> shape_;
  size_t count_ = 1;
  T* data_ = nullptr;
  DLTensor tensor_{};
};

inline uint16_t bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline std::vector<uint16_t> random_bf16(size_t count, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<uint16_t> values(count);
  for (uint16_t& v : values) v = bf16(normal(random));
  return values;
}
inline std::vector<float> random_fp32(size_t count, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

// Bits, so that NaN compares like anything else. The first difference, or -1.
template <class T>
int64_t first_difference(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace cuda_test
