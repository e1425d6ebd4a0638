// Safetensors files: 8 bytes header length, a JSON header, then the tensors' bytes. Files are untrusted: everything is
// checked before a tensor is handed out, and every refusal is one line naming file, tensor, expected and found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "io/result.h"

namespace kda::io {

enum class TensorType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};

int64_t size_of(TensorType type);      // bytes of one element
const char* name_of(TensorType type);  // as in the file: "BF16"
bool parse_tensor_type(std::string_view name, TensorType* type);

using Shape = std::vector<int64_t>;
std::string shape_text(const Shape& shape);  // "[4, 128]"

// One tensor. `data` points into the mapping and lives as long as its SafetensorsFile; it is little-endian, compact,
// last dimension fastest, and aligned to its element size only if aligned() says so (the format does not promise it).
struct TensorInfo {
  std::string name;
  TensorType type = TensorType::kU8;
  Shape shape;
  int64_t elements = 0;
  std::span<const std::byte> data;

  bool aligned() const { return reinterpret_cast<uintptr_t>(data.data()) % static_cast<uintptr_t>(size_of(type)) == 0; }
};

constexpr size_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own implementation
constexpr size_t kMaxTensorRank = 16;

class SafetensorsFile {
 public:
  // Maps and checks a file. Refused: a header that is cut, too long, not JSON of the format's form, or with a key given
  // twice; unknown dtypes; sizes that overflow or disagree with dtype and shape; tensors that overlap, leave gaps or
  // end beyond the file; bytes after the last tensor.
  static Result<SafetensorsFile> open(const std::string& path);
  // The same over bytes in memory, which the caller keeps alive. `path` is only used in messages.
  static Result<SafetensorsFile> parse(std::span<const std::byte> bytes, const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of their bytes
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  const TensorInfo* find(std::string_view name) const;  // null if absent
  // The tensor, or an error naming file, tensor, expected and found.
  Result<const TensorInfo*> require(std::string_view name, TensorType type, const Shape& shape) const;
  Result<const TensorInfo*> require(std::string_view name) const;

 private:
  MappedFile mapping_;
  std::string path_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
};

// A checkpoint directory: NAME.safetensors.index.json and the files it lists, or one NAME.safetensors.
class Checkpoint {
 public:
  static Result<Checkpoint> open(const std::string& directory, const std::string& name = "model");

  const TensorInfo* find(std::string_view name) const;
  Result<const TensorInfo*> require(std::string_view name, TensorType type, const Shape& shape) const;
  Result<const TensorInfo*> require(std::string_view name) const;
  std::vector<std::string> names() const;  // sorted

 private:
  std::string path_;  // the index or the single file, for messages
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const TensorInfo*, std::less<>> tensors_;
};

// A tensor to write. `data` is only read.
struct TensorToWrite {
  std::string name;
  TensorType type = TensorType::kF32;
  Shape shape;
  std::span<const std::byte> data;
};

// Writes one file atomically; tensors keep their order, except that larger element types come first so that all are
// aligned. Refused: two tensors of one name, data of another size than dtype and shape say.
Outcome write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                          const std::map<std::string, std::string>& metadata);
// The same file in memory.
Result<std::string> safetensors_bytes(const std::vector<TensorToWrite>& tensors,
                                      const std::map<std::string, std::string>& metadata);

}  // namespace kda::io
