// The data the tools answer from: embedded at build time, or read from a folder (--data DIR) that holds engines/ and
// data/.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "expression.h"

namespace kda::doctor {

// A file of the data set does not exist, or is not what its schema says; the text names the file.
class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Resources {
 public:
  // Embedded data only, or with files of `folder` in front of the embedded ones of the same name.
  // Throws DataError if the folder holds none of them.
  explicit Resources(std::string folder = {});

  // Contents of "engines/sglang.json" or "data/gpus.json" and the like; throws DataError.
  std::string text(std::string_view name) const;
  Json json(std::string_view name) const;
  // Names of the files below a prefix, e.g. "data/models/", sorted.
  std::vector<std::string> list(std::string_view prefix) const;

 private:
  std::string folder_;
};

// Parses JSON text. Empty if it is none, or nests so deep that walking it could overflow the stack.
std::optional<Json> parse_json(std::string_view text);

// Reads a file of at most `limit` bytes; empty when it cannot be read or is longer.
std::optional<std::string> read_file(const std::string& path, size_t limit = 16 << 20);

struct EmbeddedFile {
  const char* name;
  const char* begin;
  size_t size;
};
extern const EmbeddedFile kEmbeddedFiles[];
extern const size_t kEmbeddedFileCount;

}  // namespace kda::doctor
