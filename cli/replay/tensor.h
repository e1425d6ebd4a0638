// Tensors of a replay: owned, aligned host memory with a DLPack view.
#pragma once

#include <dlpack/dlpack.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "io/result.h"
#include "io/safetensors.h"

namespace kda::cli::replay {

// Memory this tool makes up from numbers in a file (records, snapshots, workspace) is bounded, so that a file of a few
// bytes cannot ask for all of a machine.
constexpr int64_t kMaxScratchBytes = int64_t{4} << 30;

class HostTensor {
 public:
  HostTensor() = default;  // absent: view() is null
  static HostTensor copy_of(const io::TensorInfo& tensor);
  // Every byte 0xff: NaN in each float type, so that what a call does not write shows.
  static io::Result<HostTensor> poisoned(io::TensorType type, const io::Shape& shape, const char* what);
  static HostTensor of_indices(const std::vector<int64_t>& values);
  static HostTensor of_flags(const std::vector<uint8_t>& values);

  bool present() const { return memory_ != nullptr; }
  const DLTensor* view() const { return present() ? &view_ : nullptr; }
  DLTensor* mutable_view() { return present() ? &view_ : nullptr; }
  io::TensorType type() const { return type_; }
  const io::Shape& shape() const { return shape_; }
  int64_t elements() const { return elements_; }
  std::span<const std::byte> bytes() const { return {memory_.get(), size_}; }
  std::span<std::byte> bytes() { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  static HostTensor allocate(io::TensorType type, const io::Shape& shape, int64_t elements);

  std::unique_ptr<std::byte, Free> memory_;
  size_t size_ = 0;
  io::TensorType type_ = io::TensorType::kU8;
  int64_t elements_ = 0;
  io::Shape shape_;
  DLTensor view_ = {};
};

bool is_float(io::TensorType type);  // F32, BF16, F16
bool is_index(io::TensorType type);  // I32, I64
bool is_flag(io::TensorType type);   // U8, BOOL

// Element i of float memory of any alignment, exactly.
double float_at(std::span<const std::byte> memory, io::TensorType type, int64_t i);
// All values of an I32 or I64 tensor.
std::vector<int64_t> indices_of(const io::TensorInfo& tensor);
// The same numbers as F32; a NaN keeps its sign and the bits that fit.
std::vector<float> widened(std::span<const std::byte> memory, io::TensorType type);

// The shape without leading ones beyond `rank` dimensions.
io::Shape without_leading_ones(const io::Shape& shape, size_t rank);
// a*b*c..., or -1 if it is negative or does not fit.
int64_t product_or_negative(std::initializer_list<int64_t> factors);

}  // namespace kda::cli::replay
