// Products with packed weights (model/panels.h). Included once per SIMD target.
//
// The one order of a sum over K: from zero, k ascending, each product added by a fused multiply-add. A lane belongs to
// one output, so the order depends neither on the number of lanes nor on how many rows and panels share the registers.
#if defined(KDA_MODEL_PANEL_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_MODEL_PANEL_PRODUCT_INL_H_
#undef KDA_MODEL_PANEL_PRODUCT_INL_H_
#else
#define KDA_MODEL_PANEL_PRODUCT_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "model/panels.h"
#include "model/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::model::HWY_NAMESPACE {

constexpr int kPanelVectors = static_cast<int>(kPanelOutputs / kLanes);
// Rows of one block: their sums, two vectors of weights and a value of x fit the registers.
constexpr int kMostPanelRows = kLanes == 16 ? 12 : kLanes == 8 ? 2 : 1;

// Vectors i and i + kPanelVectors / 2 of input k's weights: outputs from i * kLanes and from 16 + i * kLanes on.
HWY_INLINE void load_pair(const uint16_t* panel, int64_t k, int i, FloatVec* lower, FloatVec* upper) {
  const hn::RebindToUnsigned<Floats> words;
  const auto pair =
      hn::LoadU(words, reinterpret_cast<const uint32_t*>(panel + k * kPanelOutputs) + i * static_cast<int>(kLanes));
  *lower = hn::BitCast(Floats(), hn::ShiftLeft<16>(pair));
  *upper = hn::BitCast(Floats(), hn::And(pair, hn::Set(words, 0xffff0000u)));
}
HWY_INLINE void load_pair(const float* panel, int64_t k, int i, FloatVec* lower, FloatVec* upper) {
  *lower = load(panel + k * kPanelOutputs + i * kLanes);
  *upper = load(panel + k * kPanelOutputs + kPanelOutputs / 2 + i * kLanes);
}

// R rows of x with P panels, whose first `live` outputs are wanted.
template <int R, int P, class W>
HWY_INLINE void panel_block(const float* HWY_RESTRICT x, int64_t x_stride, const W* HWY_RESTRICT panels, int64_t size,
                            int64_t live, Sums sums) {
  constexpr int V = kPanelVectors, kHalf = V / 2;
  FloatVec acc[R][P][V];
  KDA_UNROLL for (int r = 0; r < R; ++r) {
    KDA_UNROLL for (int p = 0; p < P; ++p) { KDA_UNROLL for (int v = 0; v < V; ++v) acc[r][p][v] = hn::Zero(Floats()); }
  }
  const int64_t panel_size = size * kPanelOutputs;
  for (int64_t k = 0; k < size; ++k) {
    KDA_UNROLL for (int p = 0; p < P; ++p) {
      KDA_UNROLL for (int i = 0; i < kHalf; ++i) {
        FloatVec lower, upper;
        load_pair(panels + p * panel_size, k, i, &lower, &upper);
        KDA_UNROLL for (int r = 0; r < R; ++r) {
          const FloatVec xv = hn::Set(Floats(), x[r * x_stride + k]);
          acc[r][p][i] = hn::MulAdd(xv, lower, acc[r][p][i]);
          acc[r][p][kHalf + i] = hn::MulAdd(xv, upper, acc[r][p][kHalf + i]);
        }
      }
    }
  }
  const bool whole = live >= P * kPanelOutputs;
  HWY_ALIGN float spare[P * kPanelOutputs];
  KDA_UNROLL for (int r = 0; r < R; ++r) {
    float* const out = sums.out + r * sums.stride;
    KDA_UNROLL for (int p = 0; p < P; ++p) {
      KDA_UNROLL for (int v = 0; v < V; ++v) {
        const int64_t at = p * kPanelOutputs + v * kLanes;
        if (whole) {
          hn::StoreU(sums.add ? hn::Add(load(out + at), acc[r][p][v]) : acc[r][p][v], Floats(), out + at);
        } else {
          hn::Store(acc[r][p][v], Floats(), spare + at);
        }
      }
    }
    for (int64_t n = 0; !whole && n < live; ++n) out[n] = sums.add ? out[n] + spare[n] : spare[n];
  }
}

// How many panels R rows work on together: eight independent sums hide the latency of a multiply-add.
constexpr int panels_together(int rows) {
  if (kLanes < 16) return kLanes == 8 && rows == 1 ? 2 : 1;
  return rows <= 2 ? 4 : rows <= 6 ? 2 : 1;
}

// Outputs [first, end), first a multiple of kPanelOutputs, of R rows.
template <int R, class W>
void panel_rows(const float* x, int64_t x_stride, const Matrix& weights, int64_t first, int64_t end, Sums sums) {
  constexpr int P = panels_together(R);
  const W* const panels = static_cast<const W*>(weights.panels);
  const int64_t size = weights.inputs;
  int64_t n = first;
  const auto at = [&](int64_t output) { return Sums{sums.out + output, sums.stride, sums.add}; };
  for (; n + P * kPanelOutputs <= end; n += P * kPanelOutputs) {
    panel_block<R, P>(x, x_stride, panels + n * size, size, P * kPanelOutputs, at(n));
  }
  for (; n < end; n += kPanelOutputs) panel_block<R, 1>(x, x_stride, panels + n * size, size, end - n, at(n));
}

// The blocks of rows of a product, as even as they can be.
template <class W>
void panel_product(const Product& p, int64_t first, int64_t end) {
  const int64_t blocks = (p.rows + kMostPanelRows - 1) / kMostPanelRows;
  // Panels that are worked on together stay in the nearest cache while all rows pass.
  const int64_t step = kPanelOutputs * panels_together(static_cast<int>((p.rows + blocks - 1) / blocks));
  for (int64_t n = first; n < end; n += step) {
    const int64_t until = std::min(end, n + step);
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t row = p.rows * block / blocks, rows = p.rows * (block + 1) / blocks - row;
      const float* x = p.x + row * p.x_stride;
      const Sums sums{p.out + row * p.out_stride, p.out_stride, p.accumulate};
      switch (rows) {
#define KDA_PANEL_ROWS(R)                                       \
  case R:                                                       \
    panel_rows<R, W>(x, p.x_stride, p.weights, n, until, sums); \
    break;
        KDA_PANEL_ROWS(1)
#if HWY_MAX_BYTES >= 32
        KDA_PANEL_ROWS(2)
#endif
#if HWY_MAX_BYTES >= 64
        KDA_PANEL_ROWS(3)
        KDA_PANEL_ROWS(4)
        KDA_PANEL_ROWS(5)
        KDA_PANEL_ROWS(6)
        KDA_PANEL_ROWS(7)
        KDA_PANEL_ROWS(8)
        KDA_PANEL_ROWS(9)
        KDA_PANEL_ROWS(10)
        KDA_PANEL_ROWS(11)
        KDA_PANEL_ROWS(12)
#endif
#undef KDA_PANEL_ROWS
        default:
          break;
      }
    }
  }
}

}  // namespace kda::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
