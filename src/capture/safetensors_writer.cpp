#include "capture/safetensors_writer.h"

#include <cstdio>
#include <memory>

#include "plan/json.h"

namespace kda {
namespace {

constexpr size_t kHeaderAlignment = 8;

bool write_bytes(std::FILE* file, const void* bytes, size_t size) {
  return size == 0 || std::fwrite(bytes, 1, size, file) == size;
}

}  // namespace

std::byte* SafetensorsWriter::tensor(std::string name, const char* dtype, int64_t element_bytes,
                                     std::vector<int64_t> shape, std::byte fill) {
  int64_t elements = 1;
  for (int64_t size : shape) elements *= size;
  tensors_.push_back({std::move(name), dtype, std::move(shape), {}});
  tensors_.back().bytes.assign(static_cast<size_t>(elements * element_bytes), fill);
  return tensors_.back().bytes.data();
}

std::string SafetensorsWriter::header() const {
  JsonWriter json;
  json.object([&] {
    json.key("__metadata__").object([&] {
      for (const auto& [key, value] : metadata_) json.key(key).string(value);
    });
    int64_t offset = 0;
    for (const Tensor& tensor : tensors_) {
      json.key(tensor.name).object([&] {
        json.key("dtype").string(tensor.dtype);
        json.key("shape").array([&] {
          for (int64_t size : tensor.shape) json.number(size);
        });
        const int64_t end = offset + static_cast<int64_t>(tensor.bytes.size());
        json.key("data_offsets").array([&] {
          json.number(offset);
          json.number(end);
        });
        offset = end;
      });
    }
  });
  std::string text = json.text();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  return text;
}

bool SafetensorsWriter::write(const std::string& path) const {
  const std::string partial = path + ".partial";
  const std::string text = header();
  unsigned char length[8];
  for (size_t i = 0; i < sizeof(length); ++i) length[i] = static_cast<unsigned char>(uint64_t{text.size()} >> (8 * i));
  std::FILE* file = std::fopen(partial.c_str(), "wbx");
  if (file == nullptr) return false;
  bool written = write_bytes(file, length, sizeof(length)) && write_bytes(file, text.data(), text.size());
  for (const Tensor& tensor : tensors_)
    written = written && write_bytes(file, tensor.bytes.data(), tensor.bytes.size());
  written = std::fclose(file) == 0 && written;
  if (written && std::rename(partial.c_str(), path.c_str()) == 0) return true;
  std::remove(partial.c_str());
  return false;
}

}  // namespace kda
