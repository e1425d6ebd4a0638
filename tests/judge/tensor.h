// A strided tensor in host memory that tests build, slice and hand to the library as a DLTensor. Memory that no test
// wrote holds NaN (every byte 0xff, which is NaN in fp32, bf16 and fp16 and -1 in integers).
#pragma once

#include <dlpack/dlpack.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace judge {

enum class Type { f32, bf16, f16, i32, i64, u8 };

constexpr int64_t bytes_of(Type t) {
  return t == Type::u8 ? 1 : t == Type::i64 ? 8 : t == Type::bf16 || t == Type::f16 ? 2 : 4;
}

// Own conversions: nothing here comes from the code under test.
inline uint16_t encode_bf16(double x) {
  uint32_t bits = std::bit_cast<uint32_t>(float(x));
  if (std::isnan(x)) return 0x7fff;
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline double decode_bf16(uint16_t h) { return std::bit_cast<float>(uint32_t(h) << 16); }
#if defined(__aarch64__)
using Half = __fp16;  // GCC 12 has _Float16 for C++ on x86 only
#else
using Half = _Float16;
#endif
inline uint16_t encode_fp16(double x) { return std::bit_cast<uint16_t>(static_cast<Half>(x)); }
inline double decode_fp16(uint16_t h) { return double(std::bit_cast<Half>(h)); }

class Tensor {
 public:
  Tensor() = default;  // absent
  Tensor(Type type, std::vector<int64_t> shape) : Tensor(type, shape, compact_strides(shape)) {}
  Tensor(Type type, std::vector<int64_t> shape, std::vector<int64_t> strides)
      : type_(type), shape_(std::move(shape)), strides_(std::move(strides)) {
    int64_t last = 0;
    for (size_t d = 0; d < shape_.size(); ++d) last += std::max<int64_t>(shape_[d] - 1, 0) * strides_[d];
    storage_ = std::make_shared<std::vector<std::byte>>(size_t((last + 1) * bytes_of(type_)), std::byte{0xff});
  }
  static Tensor of(Type type, const std::vector<int64_t>& values, int64_t stride = 1) {
    Tensor t(type, {int64_t(values.size())}, {stride});
    for (size_t i = 0; i < values.size(); ++i) t.set_integer(int64_t(i), values[i]);
    return t;
  }
  static std::vector<int64_t> compact_strides(const std::vector<int64_t>& shape) {
    std::vector<int64_t> strides(shape.size(), 1);
    for (int d = int(shape.size()) - 2; d >= 0; --d) strides[d] = strides[d + 1] * shape[d + 1];
    return strides;
  }

  bool present() const { return storage_ != nullptr; }
  Type type() const { return type_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  const std::vector<int64_t>& strides() const { return strides_; }
  int64_t size(int d) const { return shape_[d]; }
  std::byte* data() const { return storage_->data() + offset_ * bytes_of(type_); }

  // A view of other shape and strides on the same memory, `offset` elements further.
  Tensor view(std::vector<int64_t> shape, std::vector<int64_t> strides, int64_t offset) const {
    Tensor t = *this;
    t.shape_ = std::move(shape);
    t.strides_ = std::move(strides);
    t.offset_ += offset;
    return t;
  }
  Tensor clone() const {
    Tensor t = *this;
    if (present()) t.storage_ = std::make_shared<std::vector<std::byte>>(*storage_);
    return t;
  }
  std::vector<std::byte>& storage() const { return *storage_; }

  template <class... I>
  int64_t index(I... i) const {
    int64_t at = 0;
    size_t d = 0;
    ((at += int64_t(i) * strides_[d++]), ...);
    return at;
  }
  double load(int64_t index) const {
    const std::byte* p = data() + index * bytes_of(type_);
    if (type_ == Type::f32) return read<float>(p);
    return type_ == Type::bf16 ? decode_bf16(read<uint16_t>(p)) : decode_fp16(read<uint16_t>(p));
  }
  void store(int64_t index, double x) const {
    std::byte* p = data() + index * bytes_of(type_);
    if (type_ == Type::f32) return write(p, float(x));
    write(p, type_ == Type::bf16 ? encode_bf16(x) : encode_fp16(x));
  }
  template <class... I>
  double at(I... i) const {
    return load(index(i...));
  }
  template <class... I>
  void set(double x, I... i) const {
    store(index(i...), x);
  }
  void set_integer(int64_t i, int64_t x) const { store_integer(i * strides_[0], x); }
  void store_integer(int64_t index, int64_t x) const {
    std::byte* p = data() + index * bytes_of(type_);
    if (type_ == Type::u8) return write(p, uint8_t(x));
    type_ == Type::i64 ? write(p, x) : write(p, int32_t(x));
  }

  // For the library; valid while this object lives and is not changed. nullptr if absent.
  const DLTensor* dl() const {
    if (!present()) return nullptr;
    dl_.data = data();
    dl_.device = {kDLCPU, 0};
    dl_.ndim = int32_t(shape_.size());
    const uint8_t code = type_ == Type::bf16                        ? kDLBfloat
                         : type_ == Type::f32 || type_ == Type::f16 ? kDLFloat
                         : type_ == Type::u8                        ? kDLUInt
                                                                    : kDLInt;
    dl_.dtype = {code, uint8_t(8 * bytes_of(type_)), 1};
    dl_.shape = const_cast<int64_t*>(shape_.data());
    dl_.strides = const_cast<int64_t*>(strides_.data());
    dl_.byte_offset = 0;
    return &dl_;
  }

 private:
  template <class T>
  static T read(const std::byte* p) {
    T x;
    std::memcpy(&x, p, sizeof(T));
    return x;
  }
  template <class T>
  static void write(std::byte* p, T x) {
    std::memcpy(p, &x, sizeof(T));
  }

  Type type_ = Type::f32;
  std::vector<int64_t> shape_, strides_;
  int64_t offset_ = 0;
  std::shared_ptr<std::vector<std::byte>> storage_;
  mutable DLTensor dl_{};
};

}  // namespace judge
