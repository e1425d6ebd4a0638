#include "cli/replay/tensor.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

namespace kda::cli::replay {
namespace {

constexpr size_t kAlignment = 64;

DLDataType dlpack_type(io::TensorType type) {
  switch (type) {
    case io::TensorType::kF32:
      return {kDLFloat, 32, 1};
    case io::TensorType::kF16:
      return {kDLFloat, 16, 1};
    case io::TensorType::kBF16:
      return {kDLBfloat, 16, 1};
    case io::TensorType::kI32:
      return {kDLInt, 32, 1};
    case io::TensorType::kI64:
      return {kDLInt, 64, 1};
    case io::TensorType::kBool:
      return {kDLBool, 8, 1};
    default:
      return {kDLUInt, 8, 1};
  }
}

uint32_t widen_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t fraction = half & 0x3ffu;
  if (exponent == 0x1f) return sign | 0x7f800000u | fraction << 13;
  if (exponent != 0) return sign | (exponent + 112) << 23 | fraction << 13;
  const float subnormal = std::ldexp(static_cast<float>(fraction), -24);
  uint32_t bits;
  std::memcpy(&bits, &subnormal, sizeof bits);
  return sign | bits;
}

uint32_t float_bits_at(std::span<const std::byte> memory, io::TensorType type, int64_t i) {
  const std::byte* element = memory.data() + i * io::size_of(type);
  if (type == io::TensorType::kF32) {
    uint32_t bits;
    std::memcpy(&bits, element, sizeof bits);
    return bits;
  }
  uint16_t bits;
  std::memcpy(&bits, element, sizeof bits);
  return type == io::TensorType::kBF16 ? static_cast<uint32_t>(bits) << 16 : widen_half(bits);
}

}  // namespace

void HostTensor::Free::operator()(std::byte* memory) const { std::free(memory); }

HostTensor HostTensor::allocate(io::TensorType type, const io::Shape& shape, int64_t elements) {
  HostTensor tensor;
  tensor.type_ = type;
  tensor.shape_ = shape;
  tensor.elements_ = elements;
  tensor.size_ = static_cast<size_t>(elements * io::size_of(type));
  const size_t capacity = (tensor.size_ + kAlignment) / kAlignment * kAlignment;  // never 0: empty tensors have memory
  tensor.memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, capacity)));
  if (tensor.memory_ == nullptr) throw std::bad_alloc();
  tensor.view_.data = tensor.memory_.get();
  tensor.view_.device = {kDLCPU, 0};
  tensor.view_.ndim = static_cast<int32_t>(shape.size());
  tensor.view_.dtype = dlpack_type(type);
  tensor.view_.shape = tensor.shape_.data();  // vectors keep their memory when they are moved
  return tensor;
}

HostTensor HostTensor::copy_of(const io::TensorInfo& source) {
  HostTensor tensor = allocate(source.type, source.shape, source.elements);
  std::copy(source.data.begin(), source.data.end(), tensor.memory_.get());
  return tensor;
}

io::Result<HostTensor> HostTensor::poisoned(io::TensorType type, const io::Shape& shape, const char* what) {
  int64_t elements = 1;
  for (const int64_t dim : shape) elements = product_or_negative({elements, dim});
  if (elements < 0 || elements > kMaxScratchBytes / io::size_of(type)) {
    return io::Error{std::string(what) + ": expected at most " + std::to_string(kMaxScratchBytes) + " bytes, found " +
                     io::name_of(type) + " " + io::shape_text(shape)};
  }
  HostTensor tensor = allocate(type, shape, elements);
  std::memset(tensor.memory_.get(), 0xff, tensor.size_);
  return tensor;
}

HostTensor HostTensor::of_indices(const std::vector<int64_t>& values) {
  const auto count = static_cast<int64_t>(values.size());
  HostTensor tensor = allocate(io::TensorType::kI64, {count}, count);
  if (count > 0) std::memcpy(tensor.memory_.get(), values.data(), tensor.size_);
  return tensor;
}

HostTensor HostTensor::of_flags(const std::vector<uint8_t>& values) {
  const auto count = static_cast<int64_t>(values.size());
  HostTensor tensor = allocate(io::TensorType::kU8, {count}, count);
  if (count > 0) std::memcpy(tensor.memory_.get(), values.data(), tensor.size_);
  return tensor;
}

bool is_float(io::TensorType type) {
  return type == io::TensorType::kF32 || type == io::TensorType::kBF16 || type == io::TensorType::kF16;
}
bool is_index(io::TensorType type) { return type == io::TensorType::kI32 || type == io::TensorType::kI64; }
bool is_flag(io::TensorType type) { return type == io::TensorType::kU8 || type == io::TensorType::kBool; }

double float_at(std::span<const std::byte> memory, io::TensorType type, int64_t i) {
  const uint32_t bits = float_bits_at(memory, type, i);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::vector<int64_t> indices_of(const io::TensorInfo& tensor) {
  std::vector<int64_t> values(static_cast<size_t>(tensor.elements));
  for (size_t i = 0; i < values.size(); ++i) {
    if (tensor.type == io::TensorType::kI64) {
      std::memcpy(&values[i], tensor.data.data() + i * 8, 8);
    } else {
      int32_t narrow;
      std::memcpy(&narrow, tensor.data.data() + i * 4, 4);
      values[i] = narrow;
    }
  }
  return values;
}

std::vector<float> widened(std::span<const std::byte> memory, io::TensorType type) {
  std::vector<float> values(memory.size() / static_cast<size_t>(io::size_of(type)));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = float_bits_at(memory, type, static_cast<int64_t>(i));
    std::memcpy(&values[i], &bits, sizeof bits);
  }
  return values;
}

io::Shape without_leading_ones(const io::Shape& shape, size_t rank) {
  size_t first = 0;
  while (shape.size() - first > rank && shape[first] == 1) ++first;
  return io::Shape(shape.begin() + static_cast<std::ptrdiff_t>(first), shape.end());
}

int64_t product_or_negative(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (factor < 0 || __builtin_mul_overflow(product, factor, &product)) return -1;
  }
  return product;
}

}  // namespace kda::cli::replay
