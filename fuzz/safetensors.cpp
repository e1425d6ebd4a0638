// The safetensors reader on any bytes: it answers, and what it accepts lies within the bytes.
#include "io/safetensors.h"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file = kda::io::SafetensorsFile::parse(bytes, "fuzz");
  if (!file) return 0;
  for (const kda::io::TensorInfo& tensor : file->tensors()) {
    if (tensor.data.empty()) continue;
    const bool inside = tensor.data.data() >= bytes.data() && tensor.data.size() <= size &&
                        tensor.data.data() + tensor.data.size() <= bytes.data() + size;
    if (!inside || file->find(tensor.name) != &tensor) std::abort();
  }
  return 0;
}
