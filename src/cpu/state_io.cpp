#include "cpu/state_io.h"

#include <cstring>

#include "cpu/half.h"

namespace kda::cpu {
namespace {

std::byte* row_of(const StateRows& rows, int64_t row) { return rows.data + row * rows.stride * size_of(rows.dtype); }

void clear_padding(const Problem& p, const StateRows& to, int64_t row) {
  const int64_t padding = padded_key(p.key_dim) - p.key_dim;
  if (padding > 0) std::memset(row_of(to, row) + p.key_dim * size_of(to.dtype), 0, padding * size_of(to.dtype));
}

// One row of K elements between dtypes.
void convert_row(const TargetFunctions& f, const std::byte* from, DType from_dtype, int64_t count, std::byte* to,
                 DType to_dtype) {
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, count * size_of(to_dtype));
  } else if (to_dtype == DType::fp32) {
    f.widen(from, from_dtype, count, reinterpret_cast<float*>(to));
  } else if (from_dtype == DType::fp32) {
    f.narrow(reinterpret_cast<const float*>(from), count, to_dtype, to);
  } else {
    for (int64_t i = 0; i < count; ++i) store_element(load_element(from, from_dtype, i), to, to_dtype, i);
  }
}

}  // namespace

void load_rows(const Problem& p, const TargetFunctions& f, const StoredState& from, int64_t first_row, int64_t rows,
               const StateRows& to) {
  if (p.state_layout == StateLayout::vk) {
    const int64_t row_bytes = p.key_dim * size_of(from.dtype);
    for (int64_t r = 0; r < rows; ++r) {
      convert_row(f, from.data + (first_row + r) * row_bytes, from.dtype, p.key_dim, row_of(to, r), to.dtype);
    }
  } else {
    for (int64_t k = 0; k < p.key_dim; ++k) {
      const int64_t begin = k * p.value_dim + first_row;
      for (int64_t r = 0; r < rows; ++r) {
        store_element(load_element(from.data, from.dtype, begin + r), to.data, to.dtype, r * to.stride + k);
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) clear_padding(p, to, r);
}

void store_rows(const Problem& p, const TargetFunctions& f, const StateRows& from, int64_t first_row, int64_t rows,
                const StoredState& to) {
  if (p.state_layout == StateLayout::vk) {
    const int64_t row_bytes = p.key_dim * size_of(to.dtype);
    for (int64_t r = 0; r < rows; ++r) {
      convert_row(f, row_of(from, r), from.dtype, p.key_dim, to.data + (first_row + r) * row_bytes, to.dtype);
    }
    return;
  }
  for (int64_t k = 0; k < p.key_dim; ++k) {
    const int64_t begin = k * p.value_dim + first_row;
    for (int64_t r = 0; r < rows; ++r) {
      store_element(load_element(from.data, from.dtype, r * from.stride + k), to.data, to.dtype, begin + r);
    }
  }
}

void copy_rows(const Problem& p, const TargetFunctions& f, const StoredState& from, int64_t first_row, int64_t rows,
               const StoredState& to) {
  const bool vk = p.state_layout == StateLayout::vk;
  const int64_t runs = vk ? 1 : p.key_dim, run = vk ? rows * p.key_dim : rows;
  const int64_t begin = vk ? first_row * p.key_dim : first_row, stride = vk ? 0 : p.value_dim;
  for (int64_t i = 0; i < runs; ++i) {
    const int64_t element = begin + i * stride;
    std::byte* target = to.data + element * size_of(to.dtype);
    if (from.present()) {
      convert_row(f, from.data + element * size_of(from.dtype), from.dtype, run, target, to.dtype);
    } else {
      std::memset(target, 0, run * size_of(to.dtype));
    }
  }
}

}  // namespace kda::cpu
