// Matrix products of fp32 activations with bf16 (or fp32) weights, fp32 sums.
//
// Row-invariant: every output element is summed over K in one fixed order that does not depend on the number of rows,
// outputs, threads, or on the row's place. So a row computed alone has the bits it has among others. The order depends
// on how the weights are stored: packed in panels (model/panels.h) or as the checkpoint has them.
#pragma once

#include <cstdint>
#include <span>

#include "model/threads.h"

namespace kda::model {

// Weights as checkpoints store them: [outputs, inputs], one output's weights contiguous. Not owned.
struct Matrix {
  const void* data = nullptr;
  bool bf16 = true;  // else fp32
  int64_t outputs = 0;
  int64_t inputs = 0;
  int64_t stride = 0;            // elements from one output to the next
  const void* panels = nullptr;  // the same weights packed, see model/panels.h; null = not packed

  bool empty() const { return data == nullptr; }
  int64_t bytes() const { return outputs * inputs * (bf16 ? 2 : 4); }
  // Outputs [first, first + count), not packed.
  Matrix slice(int64_t first, int64_t count) const {
    Matrix part = *this;
    part.panels = nullptr;
    part.data = static_cast<const char*>(data) + first * stride * (bf16 ? 2 : 4);
    part.outputs = count;
    return part;
  }
};

// out[r, n] = sum over k of x[r, k] * weights[n, k]; with accumulate, added to what out holds.
struct Product {
  const float* x = nullptr;  // [rows, inputs]
  int64_t x_stride = 0;      // elements from one row to the next
  int64_t rows = 0;
  Matrix weights;
  float* out = nullptr;  // [rows, outputs]
  int64_t out_stride = 0;
  bool accumulate = false;
};

// Runs independent products in one parallel region. No product may read what another writes.
void run_products(const Threads& threads, std::span<const Product> products);

inline void run_product(const Threads& threads, const Product& product) { run_products(threads, {&product, 1}); }

// out[r, j] = sum over d of x[r, d] * weights[d, j]: the same storage, multiplied from the other side. Row-invariant as
// well: d ascending for every element.
struct TransposedProduct {
  const float* x = nullptr;  // [rows, weights.outputs]
  int64_t x_stride = 0;
  int64_t rows = 0;
  Matrix weights;
  float* out = nullptr;  // [rows, weights.inputs]
  int64_t out_stride = 0;
};

// One piece of parallel work a product.
void run_transposed_products(const Threads& threads, std::span<const TransposedProduct> products);

}  // namespace kda::model
