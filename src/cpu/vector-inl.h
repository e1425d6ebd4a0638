// Loads, stores, sums and elementary functions that the bodies share. Compiled once per target.
#if defined(KDA_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_VECTOR_INL_H_
#undef KDA_CPU_VECTOR_INL_H_
#else
#define KDA_CPU_VECTOR_INL_H_
#endif

#include <utility>

#include "cpu/half.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

// A file that compiles the bodies for more than Highway knows of sets these (target_avx512_bf16.cpp).
#ifndef KDA_TARGET_NAMESPACE
#define KDA_TARGET_NAMESPACE HWY_NAMESPACE
#define KDA_BEFORE_BODY
#define KDA_HAS_BF16_ROUNDING 0
#endif

HWY_BEFORE_NAMESPACE();
KDA_BEFORE_BODY
namespace kda::cpu {
namespace KDA_TARGET_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using VF = hn::Vec<F>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(F()));
static_assert(kKeyMultiple % kLanes == 0);

// body(constant 0), body(constant 1), ...: arrays of vectors indexed by it stay in registers at -O2 too.
template <int... kI, class Body>
HWY_INLINE void UnrollImpl(std::integer_sequence<int, kI...>, const Body& body) {
  (body(std::integral_constant<int, kI>()), ...);
}
template <int kCount, class Body>
HWY_INLINE void Unroll(const Body& body) {
  UnrollImpl(std::make_integer_sequence<int, kCount>(), body);
}

struct Fp16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};

HWY_INLINE VF LoadVector(const float* from) { return hn::LoadU(F(), from); }
HWY_INLINE void StoreVector(VF v, float* to) { hn::StoreU(v, F(), to); }

using U16 = hn::Rebind<uint16_t, F>;
using U32 = hn::RebindToUnsigned<F>;
using I32 = hn::RebindToSigned<F>;

HWY_INLINE VF FromBf16Bits(hn::Vec<U32> bits) { return hn::BitCast(F(), hn::ShiftLeft<16>(bits)); }

#if !KDA_HAS_BF16_ROUNDING
// Bits of v rounded to bf16, nearest even, in the low half of each lane.
HWY_INLINE hn::Vec<U32> ToBf16Bits(VF v) {
  const U32 d;
  const auto bits = hn::BitCast(d, v);
  const auto high = hn::ShiftRight<16>(bits);
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d, 0x7fffu)), hn::And(high, hn::Set(d, 1u))));
  const auto nan = hn::Or(high, hn::Set(d, 0x40u));
  return hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(v)), nan, rounded);
}
#endif

HWY_INLINE VF LoadVector(const Bf16* from) {
  const auto half = hn::LoadU(U16(), reinterpret_cast<const uint16_t*>(from));
  return FromBf16Bits(hn::PromoteTo(U32(), half));
}
#if KDA_HAS_BF16_ROUNDING
HWY_INLINE hn::Vec<U16> ToBf16(VF v) {
  return hn::Vec<U16>{reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v.raw))};  // nearest even; subnormals become 0
}
HWY_INLINE void StoreVector(VF v, Bf16* to) { hn::StoreU(ToBf16(v), U16(), reinterpret_cast<uint16_t*>(to)); }
#else
HWY_INLINE void StoreVector(VF v, Bf16* to) {
  const auto bits = hn::BitCast(I32(), ToBf16Bits(v));  // at most 0xffff: the saturating DemoteTo keeps every bit
  hn::StoreU(hn::DemoteTo(U16(), bits), U16(), reinterpret_cast<uint16_t*>(to));
}
#endif

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
HWY_INLINE VF LoadVector(const Fp16* from) {
  HWY_ALIGN float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = float_from_fp16(from[i].bits);
  return hn::Load(F(), lanes);
}
HWY_INLINE void StoreVector(VF v, Fp16* to) {
  HWY_ALIGN float lanes[kLanes];
  hn::Store(v, F(), lanes);
  for (int i = 0; i < kLanes; ++i) to[i].bits = fp16_from_float(lanes[i]);
}
#else
using H16 = hn::Rebind<hwy::float16_t, F>;
HWY_INLINE VF LoadVector(const Fp16* from) {
  return hn::PromoteTo(F(), hn::LoadU(H16(), reinterpret_cast<const hwy::float16_t*>(from)));
}
HWY_INLINE void StoreVector(VF v, Fp16* to) {
  hn::StoreU(hn::DemoteTo(H16(), v), H16(), reinterpret_cast<hwy::float16_t*>(to));
}
#endif

// The value that StoreVector(v, T*) leaves to a later load.
HWY_INLINE VF Rounded(VF v, const float*) { return v; }
#if KDA_HAS_BF16_ROUNDING
HWY_INLINE VF Rounded(VF v, const Bf16*) { return FromBf16Bits(hn::PromoteTo(U32(), ToBf16(v))); }
#else
HWY_INLINE VF Rounded(VF v, const Bf16*) { return FromBf16Bits(ToBf16Bits(v)); }
#endif

// Keeps a loaded vector in a register. GCC would rather fold the load into every use: twice the loads, in loops that
// the load ports bound.
HWY_INLINE void KeepInRegister(VF& v) {
#if HWY_TARGET == HWY_AVX3
  asm volatile("" : "+v"(v.raw));
#elif HWY_TARGET == HWY_AVX2
  asm volatile("" : "+x"(v.raw));
#else
  (void)v;
#endif
}

// Lanes: sums of neighbouring lanes of a in the lower half, of b in the upper half.
HWY_INLINE VF PairSums(VF a, VF b) {
#if HWY_TARGET == HWY_SCALAR
  (void)b;
  return a;
#else
  return hn::Add(hn::ConcatEven(F(), b, a), hn::ConcatOdd(F(), b, a));
#endif
}

// The canonical sum over lanes: neighbours first.
HWY_INLINE float LaneSum(VF v) {
  for (int n = kLanes; n > 1; n /= 2) v = PairSums(v, v);
  return hn::GetLane(v);
}

// exp(x) to 2e-7 of itself: 2^n * exp(r) with n = round(x / log 2) and a polynomial for exp(r), the Chebyshev
// interpolant of degree 4 of (exp(r) - 1 - r)/r^2 on |r| <= log(2)/2. 0 where the result would be subnormal, the
// largest number instead of infinity. Half the instructions of Highway's Exp, which is made for every x; gates spend
// their time here.
HWY_INLINE VF Exp(VF x) {
  const auto c = [](float value) HWY_ATTR { return hn::Set(F(), value); };
  const VF least = c(-87.3365402f), most = c(88.7228317f);
  x = hn::Min(most, x);             // a NaN stays
  const VF whole = c(12582912.0f);  // 1.5 * 2^23: what is added to it is rounded, and n is in the sum's low bits
  const VF shifted = hn::MulAdd(x, c(1.44269504f), whole);
  const VF n = hn::Sub(shifted, whole);
  const VF r = hn::NegMulAdd(n, c(-2.12194440e-4f), hn::NegMulAdd(n, c(0.693359375f), x));  // log 2 in two parts
  const VF r2 = hn::Mul(r, r);
  const VF low = hn::MulAdd(r, c(0.166665763f), c(0.5f));
  const VF high = hn::MulAdd(r2, c(0.0013926184f), hn::MulAdd(r, c(0.00836317893f), c(0.0416665561f)));
  const VF e = hn::Add(c(1.0f), hn::MulAdd(hn::MulAdd(high, r2, low), r2, r));
  const auto scaled = hn::Add(hn::BitCast(U32(), e), hn::ShiftLeft<23>(hn::BitCast(U32(), shifted)));
  return hn::IfThenZeroElse(hn::Lt(x, least), hn::BitCast(F(), scaled));
}

// 1/(1 + exp(-x)); relative accuracy kept for very negative x, and no overflow on the way.
HWY_INLINE VF Sigmoid(VF x) {
  const F d;
  const VF one = hn::Set(d, 1.0f), small = Exp(hn::Neg(hn::Abs(x)));
  const VF numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), small, one);
  return hn::Div(numerator, hn::Add(one, small));
}

// log(1 + y)/y on [0, 1] by Chebyshev interpolation of degree 10; y times it is within 1.2e-7 of log(1 + y). Highway's
// Log1p also covers what lies outside, with two divisions a vector.
HWY_INLINE VF Log1pOfUnit(VF y) {
  const auto c = [](float x) HWY_ATTR { return hn::Set(F(), x); };
  const VF ratio = hn::impl::Estrin(y, c(1.0f), c(-0.499999791f), c(0.333324969f), c(-0.249864966f), c(0.198858202f),
                                    c(-0.160876229f), c(0.12377996f), c(-0.0818804055f), c(0.0410065725f),
                                    c(-0.0131878266f), c(0.00198669662f));
  return hn::Mul(y, ratio);
}

// log(1 + exp(x)), relative accuracy kept for very negative x.
HWY_INLINE VF Softplus(VF x) {
  const VF small = Exp(hn::Neg(hn::Abs(x)));
  return hn::Add(hn::Max(x, hn::Zero(F())), Log1pOfUnit(small));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace KDA_TARGET_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();
#endif
