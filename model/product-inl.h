// The dot-product kernel behind every matrix product and attention score. Included once per SIMD target.
//
// The one order of a sum over K: element k belongs to lane k mod L (L = lanes of the target), each lane adds its
// products in ascending k with a fused multiply-add from zero, and `store_sum4` adds the lanes in one fixed tree. The
// block shape (rows x outputs at a time) decides only which sums run side by side, never the order within one.
#if defined(KDA_MODEL_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_MODEL_PRODUCT_INL_H_
#undef KDA_MODEL_PRODUCT_INL_H_
#else
#define KDA_MODEL_PRODUCT_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kda::model::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using FloatVec = hn::Vec<Floats>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Floats()));
static_assert(kLanes <= 16, "written for fixed sizes of vectors");
constexpr int kMaxRowBlock = kLanes == 16 ? 6 : 2;  // rows x 4 sums, 4 weights and a row fit the registers

HWY_INLINE FloatVec load(const float* p) { return hn::LoadU(Floats(), p); }
HWY_INLINE FloatVec load(const hwy::bfloat16_t* p) {
  return hn::PromoteTo(Floats(), hn::LoadU(hn::Rebind<hwy::bfloat16_t, Floats>(), p));
}
HWY_INLINE float to_float(float x) { return x; }
HWY_INLINE float to_float(hwy::bfloat16_t x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// The last, incomplete vector of a row, zeros beyond it.
template <class T>
HWY_INLINE FloatVec load_tail(const T* p, int64_t count) {
  HWY_ALIGN float padded[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) padded[i] = to_float(p[i]);
  return hn::Load(Floats(), padded);
}

// out[0..3] = the lane sums of four vectors, or += with add.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void store_sum4(FloatVec a, FloatVec b, FloatVec c, FloatVec d, bool add, float* out) {
  const FloatVec sums[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) out[i] = add ? out[i] + hn::GetLane(sums[i]) : hn::GetLane(sums[i]);
}
#else
template <class V>
HWY_INLINE void store_blocks_sum(V v, bool add, float* out) {
  const hn::DFromV<V> d;
  if constexpr (hn::MaxLanes(d) == 4) {
    hn::StoreU(add ? hn::Add(hn::LoadU(d, out), v) : v, d, out);
  } else {
    const hn::Half<hn::DFromV<V> > half;
    store_blocks_sum(hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), add, out);
  }
}
HWY_INLINE void store_sum4(FloatVec a, FloatVec b, FloatVec c, FloatVec d, bool add, float* out) {
  const Floats df;
  const FloatVec ac = hn::Add(hn::InterleaveLower(df, a, c), hn::InterleaveUpper(df, a, c));
  const FloatVec bd = hn::Add(hn::InterleaveLower(df, b, d), hn::InterleaveUpper(df, b, d));
  store_blocks_sum(hn::Add(hn::InterleaveLower(df, ac, bd), hn::InterleaveUpper(df, ac, bd)), add, out);
}
#endif

// Where a block's sums go: row r, output c to out[r * stride + c].
struct Sums {
  float* out;
  int64_t stride;
  bool add;  // to what is there
};

// The dot products of R rows of x with 4 * G weights of type W (float or bfloat16_t).
template <int R, int G, class W>
HWY_INLINE void dot_block(const float* HWY_RESTRICT x, int64_t x_stride, const W* const* w, int64_t size, Sums sums) {
  constexpr int C = 4 * G;
  FloatVec acc[R][C];
  KDA_UNROLL for (int r = 0; r < R; ++r) { KDA_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = hn::Zero(Floats()); }
  const W* weights[C];
  KDA_UNROLL for (int c = 0; c < C; ++c) weights[c] = w[c];
  int64_t k = 0;
  for (; k + kLanes <= size; k += kLanes) {
    FloatVec wv[C];
    KDA_UNROLL for (int c = 0; c < C; ++c) wv[c] = load(weights[c] + k);
    KDA_UNROLL for (int r = 0; r < R; ++r) {
      const FloatVec xv = load(x + r * x_stride + k);
      KDA_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = hn::MulAdd(xv, wv[c], acc[r][c]);
    }
  }
  if (k < size) {
    FloatVec wv[C];
    KDA_UNROLL for (int c = 0; c < C; ++c) wv[c] = load_tail(weights[c] + k, size - k);
    KDA_UNROLL for (int r = 0; r < R; ++r) {
      const FloatVec xv = load_tail(x + r * x_stride + k, size - k);
      KDA_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = hn::MulAdd(xv, wv[c], acc[r][c]);
    }
  }
  KDA_UNROLL for (int r = 0; r < R; ++r) {
    KDA_UNROLL for (int g = 0; g < G; ++g) {
      store_sum4(acc[r][4 * g], acc[r][4 * g + 1], acc[r][4 * g + 2], acc[r][4 * g + 3], sums.add,
                 sums.out + r * sums.stride + 4 * g);
    }
  }
}

// dot_block for 1..kMaxRowBlock rows and 4 weights, of which the first `live` are wanted.
template <class W>
HWY_INLINE void dot_rows(int64_t rows, const float* x, int64_t x_stride, const W* const* w, int64_t live, int64_t size,
                         Sums sums) {
  HWY_ALIGN float spare[kMaxRowBlock * 4];
  const Sums direct = live == 4 ? sums : Sums{spare, 4, false};
  switch (rows) {
    case 1:
      dot_block<1, 1>(x, x_stride, w, size, direct);
      break;
    case 2:
      dot_block<2, 1>(x, x_stride, w, size, direct);
      break;
#if HWY_MAX_BYTES >= 64
    case 3:
      dot_block<3, 1>(x, x_stride, w, size, direct);
      break;
    case 4:
      dot_block<4, 1>(x, x_stride, w, size, direct);
      break;
    case 5:
      dot_block<5, 1>(x, x_stride, w, size, direct);
      break;
    case 6:
      dot_block<6, 1>(x, x_stride, w, size, direct);
      break;
#endif
    default:
      break;
  }
  if (live == 4) return;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < live; ++c) {
      float& out = sums.out[r * sums.stride + c];
      out = sums.add ? out + spare[4 * r + c] : spare[4 * r + c];
    }
  }
}

}  // namespace kda::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
