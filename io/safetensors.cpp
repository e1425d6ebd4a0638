#include "io/safetensors.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <tuple>

#include "io/safetensors_header.h"

namespace kda::io {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and used in place");

struct TypeRow {
  TensorType type;
  const char* name;
  int64_t bytes;
};
constexpr TypeRow kTypes[] = {
    {TensorType::kBool, "BOOL", 1},      {TensorType::kU8, "U8", 1},          {TensorType::kI8, "I8", 1},
    {TensorType::kF8E5M2, "F8_E5M2", 1}, {TensorType::kF8E4M3, "F8_E4M3", 1}, {TensorType::kF8E8M0, "F8_E8M0", 1},
    {TensorType::kI16, "I16", 2},        {TensorType::kU16, "U16", 2},        {TensorType::kF16, "F16", 2},
    {TensorType::kBF16, "BF16", 2},      {TensorType::kI32, "I32", 4},        {TensorType::kU32, "U32", 4},
    {TensorType::kF32, "F32", 4},        {TensorType::kI64, "I64", 8},        {TensorType::kU64, "U64", 8},
    {TensorType::kF64, "F64", 8},
};

constexpr uint64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

// Elements of a shape, or false if the count does not fit 63 bits. A zero dimension does not excuse an overflow of the
// others: strides would overflow all the same.
bool count_elements(const std::vector<uint64_t>& shape, uint64_t* elements) {
  uint64_t product = 1;
  bool empty = false;
  for (const uint64_t dim : shape) {
    if (dim > kMaxInt64) return false;
    if (dim == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, dim, &product) || product > kMaxInt64) {
      return false;
    }
  }
  *elements = empty ? 0 : product;
  return true;
}

std::string range_text(uint64_t begin, uint64_t end) {
  return "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
}

// Checks one header entry against the bytes that follow the header.
Result<TensorInfo> check_entry(const HeaderEntry& entry, std::span<const std::byte> body) {
  const auto fail = [&](const std::string& text) { return Error{"tensor '" + printable(entry.name) + "': " + text}; };
  TensorInfo tensor;
  tensor.name = entry.name;
  if (!parse_tensor_type(entry.type, &tensor.type)) {
    return fail("expected a dtype such as F32, BF16 or I32, found '" + printable(entry.type) + "'");
  }
  uint64_t elements = 0;
  uint64_t bytes = 0;
  if (!count_elements(entry.shape, &elements) ||
      __builtin_mul_overflow(elements, static_cast<uint64_t>(size_of(tensor.type)), &bytes) || bytes > kMaxInt64) {
    return fail("expected a shape of less than 2^63 bytes, found more");
  }
  tensor.shape.assign(entry.shape.begin(), entry.shape.end());
  tensor.elements = static_cast<int64_t>(elements);
  const uint64_t begin = entry.offsets[0];
  const uint64_t end = entry.offsets[1];
  if (begin > end || end > body.size()) {
    return fail("expected data_offsets within the file's " + std::to_string(body.size()) + " bytes of data, found " +
                range_text(begin, end));
  }
  if (end - begin != bytes) {
    return fail(std::string("expected ") + std::to_string(bytes) + " bytes for " + name_of(tensor.type) + " " +
                shape_text(tensor.shape) + ", found data_offsets " + range_text(begin, end) + " of " +
                std::to_string(end - begin) + " bytes");
  }
  tensor.data = body.subspan(begin, end - begin);
  return tensor;
}

std::string description(const TensorInfo& tensor) { return name_of(tensor.type) + (" " + shape_text(tensor.shape)); }

Result<const TensorInfo*> require_in(const std::string& path, const TensorInfo* found, std::string_view name) {
  if (found != nullptr) return found;
  return Error{printable(path) + ": tensor '" + printable(name) + "': expected, found none"};
}

Result<const TensorInfo*> require_in(const std::string& path, const TensorInfo* found, std::string_view name,
                                     TensorType type, const Shape& shape) {
  const std::string expected = name_of(type) + (" " + shape_text(shape));
  if (found == nullptr) {
    return Error{printable(path) + ": tensor '" + printable(name) + "': expected " + expected + ", found none"};
  }
  if (found->type == type && found->shape == shape) return found;
  return Error{printable(path) + ": tensor '" + printable(name) + "': expected " + expected + ", found " +
               description(*found)};
}

}  // namespace

int64_t size_of(TensorType type) { return kTypes[static_cast<size_t>(type)].bytes; }
const char* name_of(TensorType type) { return kTypes[static_cast<size_t>(type)].name; }

bool parse_tensor_type(std::string_view name, TensorType* type) {
  for (const TypeRow& row : kTypes) {
    if (name == row.name) {
      *type = row.type;
      return true;
    }
  }
  return false;
}

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  Result<MappedFile> mapping = MappedFile::open(path);
  if (!mapping) return Error{mapping.error()};
  Result<SafetensorsFile> file = parse(mapping->bytes(), path);
  if (file) file->mapping_ = std::move(*mapping);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes, const std::string& path) {
  const auto fail = [&](const std::string& text) { return Error{printable(path) + ": " + text}; };
  constexpr size_t kLengthBytes = 8;
  if (bytes.size() < kLengthBytes) {
    return fail("expected a safetensors file of at least 8 bytes, found " + std::to_string(bytes.size()));
  }
  uint64_t header_bytes = 0;
  std::copy_n(bytes.begin(), kLengthBytes, reinterpret_cast<std::byte*>(&header_bytes));
  const size_t available = bytes.size() - kLengthBytes;
  if (header_bytes > std::min(available, kMaxHeaderBytes)) {
    return fail("expected a header of at most " + std::to_string(std::min(available, kMaxHeaderBytes)) +
                " bytes, found the length " + std::to_string(header_bytes) + " (not a safetensors file, or cut short)");
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + kLengthBytes;
  Result<Header> header = parse_header({text, static_cast<size_t>(header_bytes)});
  if (!header) return fail(header.error());

  SafetensorsFile file;
  file.path_ = path;
  file.metadata_ = std::move(header->metadata);
  const std::span<const std::byte> body = bytes.subspan(kLengthBytes + header_bytes);
  file.tensors_.reserve(header->entries.size());
  for (const HeaderEntry& entry : header->entries) {
    Result<TensorInfo> tensor = check_entry(entry, body);
    if (!tensor) return fail(tensor.error());
    file.tensors_.push_back(std::move(*tensor));
  }
  // Ties only between empty tensors; the name keeps the order the same everywhere.
  std::sort(file.tensors_.begin(), file.tensors_.end(), [](const TensorInfo& x, const TensorInfo& y) {
    return std::tuple(x.data.data(), x.data.size(), std::string_view(x.name)) <
           std::tuple(y.data.data(), y.data.size(), std::string_view(y.name));
  });
  uint64_t end = 0;
  for (size_t i = 0; i < file.tensors_.size(); ++i) {
    const TensorInfo& tensor = file.tensors_[i];
    const auto begin = static_cast<uint64_t>(tensor.data.data() - body.data());
    if (begin != end) {
      return fail("tensor '" + printable(tensor.name) +
                  "': expected its bytes to begin where the last tensor ends, at " + std::to_string(end) + ", found " +
                  std::to_string(begin));
    }
    end = begin + tensor.data.size();
    file.index_.emplace(tensor.name, i);
  }
  if (end != body.size()) {
    return fail("expected the file to end with its last tensor, found " + std::to_string(body.size() - end) +
                " bytes more");
  }
  return file;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

Result<const TensorInfo*> SafetensorsFile::require(std::string_view name, TensorType type, const Shape& shape) const {
  return require_in(path_, find(name), name, type, shape);
}

Result<const TensorInfo*> SafetensorsFile::require(std::string_view name) const {
  return require_in(path_, find(name), name);
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : it->second;
}

Result<const TensorInfo*> Checkpoint::require(std::string_view name, TensorType type, const Shape& shape) const {
  return require_in(path_, find(name), name, type, shape);
}

Result<const TensorInfo*> Checkpoint::require(std::string_view name) const {
  return require_in(path_, find(name), name);
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

}  // namespace kda::io
