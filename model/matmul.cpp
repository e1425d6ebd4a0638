#include "model/matmul.h"

#include <algorithm>
#include <vector>

#include "model/panels.h"
#include "model/scratch.h"
#include "model/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/matmul.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "model/panel_product-inl.h"
#include "model/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::model::HWY_NAMESPACE {

// Pointers to `count` weights from `first` on; those beyond the last repeat it and their sums are dropped.
template <int Count, class W>
HWY_INLINE void weight_pointers(const W* base, int64_t stride, int64_t first, int64_t end, const W** pointers) {
  for (int c = 0; c < Count; ++c) pointers[c] = base + std::min<int64_t>(first + c, end - 1) * stride;
}

// Few rows: weights are read once, as stored.
template <class W>
void few_rows(const Product& p, int64_t first, int64_t end) {
  const W* base = static_cast<const W*>(p.weights.data);
  const int64_t size = p.weights.inputs, stride = p.weights.stride;
  const W* w[8];
  int64_t n = first;
  if (p.rows == 1) {
    // Two groups of four: eight independent sums hide the latency of a fused multiply-add.
    for (; n + 8 <= end; n += 8) {
      weight_pointers<8>(base, stride, n, end, w);
      dot_block<1, 2>(p.x, 0, w, size, {p.out + n, 0, p.accumulate});
    }
  }
  for (; n < end; n += 4) {
    weight_pointers<4>(base, stride, n, end, w);
    for (int64_t row = 0; row < p.rows; row += kMaxRowBlock) {
      dot_rows(std::min<int64_t>(kMaxRowBlock, p.rows - row), p.x + row * p.x_stride, p.x_stride, w,
               std::min<int64_t>(4, end - n), size, {p.out + row * p.out_stride + n, p.out_stride, p.accumulate});
    }
  }
}

// Many rows: the weights are widened once into `panel`, then each block of rows meets all of them.
template <class W>
void many_rows(const Product& p, int64_t first, int64_t end) {
  const int64_t size = p.weights.inputs, outputs = end - first;
  // One buffer a thread: allocation per call would cost more than small products.
  static thread_local std::vector<float> buffer;
  float* const panel = at_least(&buffer, outputs * size);
  for (int64_t n = 0; n < outputs; ++n) {
    const W* w = static_cast<const W*>(p.weights.data) + (first + n) * p.weights.stride;
    float* wide = panel + n * size;
    int64_t k = 0;
    for (; k + kLanes <= size; k += kLanes) hn::StoreU(load(w + k), Floats(), wide + k);
    for (; k < size; ++k) wide[k] = to_float(w[k]);
  }
  const float* w[4];
  for (int64_t row = 0; row < p.rows; row += kMaxRowBlock) {
    const int64_t rows = std::min<int64_t>(kMaxRowBlock, p.rows - row);
    for (int64_t n = 0; n < outputs; n += 4) {
      weight_pointers<4>(static_cast<const float*>(panel), size, n, outputs, w);
      dot_rows(rows, p.x + row * p.x_stride, p.x_stride, w, std::min<int64_t>(4, outputs - n), size,
               {p.out + row * p.out_stride + first + n, p.out_stride, p.accumulate});
    }
  }
}

// Outputs [first, end) of a product.
void product_part(const Product& p, int64_t first, int64_t end) {
  if (p.weights.panels != nullptr) {
    return p.weights.bf16 ? panel_product<uint16_t>(p, first, end) : panel_product<float>(p, first, end);
  }
  if (!p.weights.bf16) return few_rows<float>(p, first, end);
  if (p.rows <= kMaxRowBlock) return few_rows<hwy::bfloat16_t>(p, first, end);
  many_rows<hwy::bfloat16_t>(p, first, end);
}

// out[r, j] (+)= sum over d of x[r, d] * w[d, j], d ascending, for columns [first, end).
template <class W>
void transposed_part(const TransposedProduct& p, int64_t first, int64_t end) {
  const W* base = static_cast<const W*>(p.weights.data);
  for (int64_t row = 0; row < p.rows; ++row) {
    const float* x = p.x + row * p.x_stride;
    float* out = p.out + row * p.out_stride;
    for (int64_t j = first; j < end; j += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, end - j);
      FloatVec acc = hn::Zero(Floats());
      for (int64_t d = 0; d < p.weights.outputs; ++d) {
        const W* w = base + d * p.weights.stride + j;
        acc = hn::MulAdd(hn::Set(Floats(), x[d]), count == kLanes ? load(w) : load_tail(w, count), acc);
      }
      HWY_ALIGN float lanes[kLanes];
      hn::Store(acc, Floats(), lanes);
      std::copy(lanes, lanes + count, out + j);
    }
  }
}

void transposed_product(const TransposedProduct& p, int64_t first, int64_t end) {
  if (p.weights.bf16) return transposed_part<hwy::bfloat16_t>(p, first, end);
  transposed_part<float>(p, first, end);
}

}  // namespace kda::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kda::model {
HWY_EXPORT(product_part);
HWY_EXPORT(transposed_product);

namespace {
// A piece of work is a block of outputs of about this many weights: small enough to spread one decoded token's products
// over threads, large enough that taking a piece costs nothing beside it.
constexpr int64_t kPieceWeights = 16 * 1024;
// Multiples of these keep the kernels' blocks whole.
constexpr int64_t kOutputsAPiece = 8, kPackedOutputsAPiece = 4 * kPanelOutputs;

int64_t outputs_a_piece(const Matrix& weights) {
  const int64_t step = weights.panels != nullptr ? kPackedOutputsAPiece : kOutputsAPiece;
  return std::max(kPieceWeights / std::max<int64_t>(weights.inputs, 1) / step * step, step);
}

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
}  // namespace

void run_products(const Threads& threads, std::span<const Product> products) {
  int64_t pieces = 0;
  for (const Product& p : products) {
    if (p.rows > 0) pieces += divide_up(p.weights.outputs, outputs_a_piece(p.weights));
  }
  threads.parallel_for(pieces, [&](int64_t piece) {
    for (const Product& p : products) {
      if (p.rows <= 0) continue;
      const int64_t step = outputs_a_piece(p.weights);
      const int64_t own = divide_up(p.weights.outputs, step);
      if (piece < own) {
        HWY_DYNAMIC_DISPATCH(product_part)(p, piece * step, std::min((piece + 1) * step, p.weights.outputs));
        return;
      }
      piece -= own;
    }
  });
}

void run_transposed_products(const Threads& threads, std::span<const TransposedProduct> products) {
  threads.parallel_for(static_cast<int64_t>(products.size()), [&](int64_t i) {
    const TransposedProduct& p = products[static_cast<size_t>(i)];
    if (p.rows > 0) HWY_DYNAMIC_DISPATCH(transposed_product)(p, 0, p.weights.inputs);
  });
}

}  // namespace kda::model
#endif  // HWY_ONCE
