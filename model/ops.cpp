#include "model/ops.h"

#include <cmath>

#include "model/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h:
#include "hwy/contrib/math/math-inl.h"
#include "model/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::model::HWY_NAMESPACE {

HWY_INLINE void store(FloatVec v, float* out, int64_t count) {
  if (count >= kLanes) return hn::StoreU(v, Floats(), out);
  HWY_ALIGN float lanes[kLanes];
  hn::Store(v, Floats(), lanes);
  std::memcpy(out, lanes, static_cast<size_t>(count) * sizeof(float));
}
HWY_INLINE FloatVec load_some(const float* p, int64_t count) { return count >= kLanes ? load(p) : load_tail(p, count); }

HWY_INLINE float lane_sum(FloatVec v) {
  const FloatVec zero = hn::Zero(Floats());
  float sums[4];
  store_sum4(v, zero, zero, zero, false, sums);
  return sums[0];
}

HWY_INLINE FloatVec sigmoid_of(FloatVec x) {
  const Floats d;
  // Beyond this exp overflows; sigmoid is below the smallest normal float there.
  const FloatVec limited = hn::Max(x, hn::Set(d, -88.0f));
  const FloatVec one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, hn::Exp(d, hn::Neg(limited))));
}

float inverse_rms(const float* x, int64_t size, float eps) {
  FloatVec sum = hn::Zero(Floats());
  for (int64_t i = 0; i < size; i += kLanes) {
    const FloatVec v = load_some(x + i, size - i);
    sum = hn::MulAdd(v, v, sum);
  }
  return 1.0f / std::sqrt(lane_sum(sum) / static_cast<float>(size) + eps);
}

void rms_norm_kernel(const float* x, const float* weight, int64_t size, float eps, float* out) {
  const FloatVec scale = hn::Set(Floats(), inverse_rms(x, size, eps));
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t left = size - i;
    store(hn::Mul(hn::Mul(load_some(x + i, left), scale), load_some(weight + i, left)), out + i, left);
  }
}

void gated_rms_norm_kernel(const float* x, const float* weight, const float* gate, int64_t size, float eps,
                           float* out) {
  const FloatVec scale = hn::Set(Floats(), inverse_rms(x, size, eps));
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t left = size - i;
    const FloatVec normed = hn::Mul(hn::Mul(load_some(x + i, left), scale), load_some(weight + i, left));
    store(hn::Mul(normed, sigmoid_of(load_some(gate + i, left))), out + i, left);
  }
}

void silu_mul_kernel(const float* gate, const float* up, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t left = size - i;
    const FloatVec g = load_some(gate + i, left);
    store(hn::Mul(hn::Mul(g, sigmoid_of(g)), load_some(up + i, left)), out + i, left);
  }
}

void sigmoid_kernel(float* x, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) store(sigmoid_of(load_some(x + i, size - i)), x + i, size - i);
}

void add_scaled_kernel(const float* x, float scale, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t left = size - i;
    store(hn::MulAdd(hn::Set(Floats(), scale), load_some(x + i, left), load_some(out + i, left)), out + i, left);
  }
}

// NaN is never the largest, unless it comes first.
float largest_of(const float* x, int64_t size) {
  FloatVec best = hn::Set(Floats(), x[0]);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const FloatVec v = load(x + i);
    best = hn::IfThenElse(hn::Gt(v, best), v, best);
  }
  HWY_ALIGN float lanes[kLanes];
  hn::Store(best, Floats(), lanes);
  float largest = lanes[0];
  for (int64_t lane = 1; lane < kLanes; ++lane) largest = lanes[lane] > largest ? lanes[lane] : largest;
  for (; i < size; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

void softmax_kernel(float* x, float scale, int64_t size) {
  const Floats d;
  const float largest = largest_of(x, size);
  const FloatVec shift = hn::Set(d, largest * scale);
  FloatVec sum = hn::Zero(d);
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t left = size - i;
    FloatVec e = hn::Exp(d, hn::Sub(hn::Mul(load_some(x + i, left), hn::Set(d, scale)), shift));
    if (left < kLanes) {
      store(e, x + i, left);
      e = load_tail(x + i, left);  // zeros beyond the end
    } else {
      hn::StoreU(e, d, x + i);
    }
    sum = hn::Add(sum, e);
  }
  const FloatVec inverse = hn::Set(d, 1.0f / lane_sum(sum));
  for (int64_t i = 0; i < size; i += kLanes) store(hn::Mul(load_some(x + i, size - i), inverse), x + i, size - i);
}

}  // namespace kda::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kda::model {
HWY_EXPORT(rms_norm_kernel);
HWY_EXPORT(gated_rms_norm_kernel);
HWY_EXPORT(silu_mul_kernel);
HWY_EXPORT(sigmoid_kernel);
HWY_EXPORT(add_scaled_kernel);
HWY_EXPORT(softmax_kernel);

void rms_norm(const float* x, const float* weight, int64_t size, float eps, float* out) {
  HWY_DYNAMIC_DISPATCH(rms_norm_kernel)(x, weight, size, eps, out);
}
void gated_rms_norm(const float* x, const float* weight, const float* gate, int64_t size, float eps, float* out) {
  HWY_DYNAMIC_DISPATCH(gated_rms_norm_kernel)(x, weight, gate, size, eps, out);
}
void silu_mul(const float* gate, const float* up, int64_t size, float* out) {
  HWY_DYNAMIC_DISPATCH(silu_mul_kernel)(gate, up, size, out);
}
void sigmoid(float* x, int64_t size) { HWY_DYNAMIC_DISPATCH(sigmoid_kernel)(x, size); }
void add_scaled(const float* x, float scale, int64_t size, float* out) {
  HWY_DYNAMIC_DISPATCH(add_scaled_kernel)(x, scale, size, out);
}
void softmax(float* x, float scale, int64_t size) { HWY_DYNAMIC_DISPATCH(softmax_kernel)(x, scale, size); }

int64_t argmax(const float* x, int64_t size) {
  int64_t best = -1;
  for (int64_t i = 0; i < size; ++i) {
    if (x[i] != x[i]) continue;
    if (best < 0 || x[i] > x[best]) best = i;
  }
  return best;
}

}  // namespace kda::model
#endif  // HWY_ONCE
