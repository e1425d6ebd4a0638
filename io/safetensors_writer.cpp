#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/safetensors.h"

namespace kda::io {

namespace {

// The pieces of a file in order: length and header as text, then each tensor's bytes.
struct Pieces {
  std::string head;
  std::vector<const TensorToWrite*> order;
};

Result<Pieces> arrange(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const auto fail = [&](const TensorToWrite& tensor, const std::string& text) {
    return Error{printable(path) + ": tensor '" + printable(tensor.name) + "': " + text};
  };
  Pieces pieces;
  std::vector<const TensorToWrite*>& order = pieces.order;
  for (const TensorToWrite& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto* x, const auto* y) { return size_of(x->type) > size_of(y->type); });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  size_t offset = 0;
  for (const TensorToWrite* tensor : order) {
    int64_t bytes = size_of(tensor->type);
    for (const int64_t dim : tensor->shape) {
      if (dim < 0 || __builtin_mul_overflow(bytes, dim, &bytes)) return fail(*tensor, "expected a shape that fits");
    }
    if (static_cast<uint64_t>(bytes) != tensor->data.size()) {
      return fail(*tensor, std::string("expected ") + std::to_string(bytes) + " bytes for " + name_of(tensor->type) +
                               " " + shape_text(tensor->shape) + ", found " + std::to_string(tensor->data.size()));
    }
    if (header.contains(tensor->name)) return fail(*tensor, "the name is given twice");
    header[tensor->name] = {{"dtype", name_of(tensor->type)},
                            {"shape", tensor->shape},
                            {"data_offsets", {offset, offset + tensor->data.size()}}};
    offset += tensor->data.size();
  }
  // error_handler replace: names may hold any bytes, and dump would throw on text that is not UTF-8.
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the format's padding: data starts 8-byte aligned
  const uint64_t length = text.size();
  pieces.head.assign(reinterpret_cast<const char*>(&length), sizeof length);
  pieces.head += text;
  return pieces;
}

}  // namespace

Outcome write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                          const std::map<std::string, std::string>& metadata) {
  const Result<Pieces> pieces = arrange(path, tensors, metadata);
  if (!pieces) return Error{pieces.error()};
  return write_file_atomically(path, [&](const PieceSink& sink) {
    return sink(std::as_bytes(std::span(pieces->head))) &&
           std::all_of(pieces->order.begin(), pieces->order.end(),
                       [&](const auto* tensor) { return sink(tensor->data); });
  });
}

Result<std::string> safetensors_bytes(const std::vector<TensorToWrite>& tensors,
                                      const std::map<std::string, std::string>& metadata) {
  const Result<Pieces> pieces = arrange("memory", tensors, metadata);
  if (!pieces) return Error{pieces.error()};
  std::string bytes = pieces->head;
  for (const TensorToWrite* tensor : pieces->order) {
    bytes.append(reinterpret_cast<const char*>(tensor->data.data()), tensor->data.size());
  }
  return bytes;
}

}  // namespace kda::io
