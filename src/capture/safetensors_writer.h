// Writes a safetensors file: a JSON header with string metadata, then the tensors' bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kda {

class SafetensorsWriter {
 public:
  void metadata(std::string key, std::string value) { metadata_.emplace_back(std::move(key), std::move(value)); }

  // Adds a compact tensor filled with `fill` and returns its bytes, valid until the next tensor is added.
  // dtype: a safetensors name ("F32"), of element_bytes each.
  std::byte* tensor(std::string name, const char* dtype, int64_t element_bytes, std::vector<int64_t> shape,
                    std::byte fill = std::byte{0});

  // Writes the whole file or none of it: to a name beside `path` first. False if the system refuses.
  bool write(const std::string& path) const;

 private:
  struct Tensor {
    std::string name;
    const char* dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  std::string header() const;
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::vector<Tensor> tensors_;
};

}  // namespace kda
