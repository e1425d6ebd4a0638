// States between pools and rows that can be stepped.
#pragma once

#include "cpu/scratch.h"
#include "cpu/target_functions.h"

namespace kda::cpu {

// A part of one head's state in a pool, a snapshot pool or node states: value rows [first_row, first_row + rows).
struct StoredState {
  std::byte* data = nullptr;  // the head's first element
  DType dtype = DType::fp32;
  bool present() const { return data != nullptr; }
};

inline StoredState stored_head(const Problem& p, const StatePool& pool, int layer, int64_t slot, int64_t head) {
  const int64_t element = slot * pool.slot_stride + head * p.value_dim * p.key_dim;
  return {.data = pool.layer_base(layer) + element * size_of(pool.dtype), .dtype = pool.dtype};
}

// True if rows of the stored state can be stepped where they are: K contiguous without padding, fp32 or bf16.
inline bool steps_in_place(const Problem& p, const StoredState& s) {
  return p.state_layout == StateLayout::vk && p.key_dim % kKeyMultiple == 0 && s.dtype != DType::fp16;
}

inline StateRows rows_in_place(const Problem& p, const StoredState& s, int64_t first_row) {
  return {.data = s.data + first_row * p.key_dim * size_of(s.dtype), .dtype = s.dtype, .stride = p.key_dim};
}

// Reads stored rows into `to` (fp32, or bf16 if the stored state is bf16), zeros in the padding.
void load_rows(const Problem&, const TargetFunctions&, const StoredState& from, int64_t first_row, int64_t rows,
               const StateRows& to);

// Stores rows, rounded to the stored dtype. from.stride = 0 stores zeros.
void store_rows(const Problem&, const TargetFunctions&, const StateRows& from, int64_t first_row, int64_t rows,
                const StoredState& to);

// Copies stored rows between pools: bits where the dtypes agree, else rounded. An absent source stores zeros.
void copy_rows(const Problem&, const TargetFunctions&, const StoredState& from, int64_t first_row, int64_t rows,
               const StoredState& to);

inline StateRows float_rows(float* data, int64_t key_padded) {
  return {.data = reinterpret_cast<std::byte*>(data), .dtype = DType::fp32, .stride = key_padded};
}
inline StateRows zero_rows(const Lane& lane) {
  return {.data = reinterpret_cast<std::byte*>(lane.zeros()), .dtype = DType::fp32, .stride = 0};
}

}  // namespace kda::cpu
