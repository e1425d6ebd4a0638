// A replay case that can be changed: how tests plant faults.
#pragma once

#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace kda::cli::testing {

struct EditableTensor {
  io::TensorType type = io::TensorType::kF32;
  io::Shape shape;
  std::vector<std::byte> bytes;

  template <class T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  size_t index_count() const { return bytes.size() / static_cast<size_t>(io::size_of(type)); }
  int64_t index(size_t i) const {
    if (type == io::TensorType::kI64) return reinterpret_cast<const int64_t*>(bytes.data())[i];
    return reinterpret_cast<const int32_t*>(bytes.data())[i];
  }
  void set_index(size_t i, int64_t value) {
    if (type == io::TensorType::kI64) {
      as<int64_t>()[i] = value;
    } else {
      as<int32_t>()[i] = static_cast<int32_t>(value);
    }
  }
};

struct EditableCase {
  std::map<std::string, EditableTensor> tensors;
  std::map<std::string, std::string> metadata;

  static EditableCase read(const std::string& path) {
    EditableCase editable;
    const auto file = io::SafetensorsFile::open(path);
    if (!file) return editable;
    editable.metadata = file->metadata();
    for (const io::TensorInfo& tensor : file->tensors()) {
      editable.tensors[tensor.name] = {tensor.type, tensor.shape, {tensor.data.begin(), tensor.data.end()}};
    }
    return editable;
  }
  std::vector<io::TensorToWrite> to_write() const {
    std::vector<io::TensorToWrite> list;
    for (const auto& [name, tensor] : tensors) list.push_back({name, tensor.type, tensor.shape, tensor.bytes});
    return list;
  }
  io::Outcome write(const std::string& path) const { return io::write_safetensors(path, to_write(), metadata); }
  std::string bytes() const { return *io::safetensors_bytes(to_write(), metadata); }
  bool has(const std::string& name) const { return tensors.count(name) != 0; }
};

}  // namespace kda::cli::testing
