// Borrowed memory with a shape: what kernels receive. Built by api/ from DLTensors, after every check.
#pragma once

#include <cstddef>

#include "core/types.h"

namespace kda {

// [tokens, heads, width] or [tokens, width] (heads = 1); the last dimension is contiguous unless noted.
struct TokenView {
  std::byte* data = nullptr;
  DType dtype = DType::fp32;
  int64_t token_stride = 0;  // elements
  int64_t head_stride = 0;   // elements
  bool present() const { return data != nullptr; }
};

// A compact parameter vector (A_log: HV, dt_bias: HV*K).
struct VectorView {
  const std::byte* data = nullptr;
  DType dtype = DType::fp32;
  bool present() const { return data != nullptr; }
};

// int32 or int64 indices [count] or [count, columns], any stride.
struct IndexView {
  const void* data = nullptr;
  bool wide = false;  // int64
  int64_t count = 0;  // rows
  int64_t columns = 1;
  int64_t stride = 1;  // elements, between rows
  int64_t column_stride = 1;
  bool on_host = false;  // on CUDA: must be staged before a kernel reads it (cuda/host_lists.h)
  bool present() const { return data != nullptr; }
  int64_t at(int64_t row, int64_t column = 0) const {
    const int64_t i = row * stride + column * column_stride;
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

// u8 or bool [count], any stride.
struct FlagView {
  const uint8_t* data = nullptr;
  int64_t stride = 1;
  bool on_host = false;
  bool present() const { return data != nullptr; }
  bool at(int64_t i) const { return data == nullptr || data[i * stride] != 0; }
};

// Layer l of a call over several layers starts at table[l], or at base + l*stride.
struct LayerAddresses {
  const uint64_t* table = nullptr;  // device memory on CUDA
  int64_t stride = 0;               // bytes
};

// State pool [slots, HV, V, K] or [slots, HV, K, V]; a slot is compact, the slot stride is free.
struct StatePool {
  std::byte* base = nullptr;
  DType dtype = DType::fp32;  // fp16 only as a snapshot destination
  int64_t slots = 0;
  int64_t slot_stride = 0;  // elements
  LayerAddresses layers;
  bool present() const { return base != nullptr; }
  std::byte* layer_base(int l) const {
    return layers.table ? reinterpret_cast<std::byte*>(layers.table[l]) : base + l * layers.stride;
  }
};

// Conv pool: element (slot, window w, channel c) at slot*slot_stride + w*window_stride + c*channel_stride.
struct ConvPool {
  std::byte* base = nullptr;
  DType dtype = DType::fp32;
  int64_t slots = 0;
  int64_t slot_stride = 0, window_stride = 0, channel_stride = 0;  // elements
  LayerAddresses layers;
  bool present() const { return base != nullptr; }
  std::byte* layer_base(int l) const {
    return layers.table ? reinterpret_cast<std::byte*>(layers.table[l]) : base + l * layers.stride;
  }
};

// Record rows written by verify: u8 [rows, row_stride].
struct RecordBuffer {
  std::byte* base = nullptr;
  int64_t rows = 0;
  int64_t row_stride = 0;  // bytes
  LayerAddresses layers;
  bool present() const { return base != nullptr; }
  std::byte* layer_base(int l) const {
    return layers.table ? reinterpret_cast<std::byte*>(layers.table[l]) : base + l * layers.stride;
  }
};

}  // namespace kda
