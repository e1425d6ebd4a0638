// The JSON header of a safetensors file, read without trusting it. Inside io/ only.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"

namespace kda::io {

struct HeaderEntry {
  std::string name;
  std::string type;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;
  bool has_type = false, has_shape = false, has_offsets = false;
};

struct Header {
  std::vector<HeaderEntry> entries;
  std::map<std::string, std::string> metadata;
};

// The error says what was expected and found, without the file's name.
Result<Header> parse_header(std::string_view json);

}  // namespace kda::io
