// Conversions and the part of a token that comes before the recurrence: gate, step size, norms. Compiled once per
// target.
#if defined(KDA_CPU_PREPARE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_PREPARE_INL_H_
#undef KDA_CPU_PREPARE_INL_H_
#else
#define KDA_CPU_PREPARE_INL_H_
#endif

#include <limits>

#include "cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
KDA_BEFORE_BODY
namespace kda::cpu {
namespace KDA_TARGET_NAMESPACE {

template <class From>
void WidenFrom(const std::byte* from, DType dtype, int64_t count, float* to) {
  const From* source = reinterpret_cast<const From*>(from);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) StoreVector(LoadVector(source + i), to + i);
  for (; i < count; ++i) to[i] = load_element(from, dtype, i);
}
void Widen(const std::byte* from, DType dtype, int64_t count, float* to) {
  if (dtype == DType::fp32) return WidenFrom<float>(from, dtype, count, to);
  return dtype == DType::bf16 ? WidenFrom<Bf16>(from, dtype, count, to) : WidenFrom<Fp16>(from, dtype, count, to);
}

template <class To>
void NarrowTo(const float* from, int64_t count, DType dtype, std::byte* to) {
  To* target = reinterpret_cast<To*>(to);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) StoreVector(LoadVector(from + i), target + i);
  for (; i < count; ++i) store_element(from[i], to, dtype, i);
}
void Narrow(const float* from, int64_t count, DType dtype, std::byte* to) {
  if (dtype == DType::fp32) return NarrowTo<float>(from, count, dtype, to);
  return dtype == DType::bf16 ? NarrowTo<Bf16>(from, count, dtype, to) : NarrowTo<Fp16>(from, count, dtype, to);
}

// log(decay) as fp16, what fast records keep of a 16-bit gate, and back. decay may be read to a whole vector.
void StoreLogDecay(const float* decay, int64_t count, std::byte* to) {
  const F d;
  HWY_ALIGN float logs[kLanes];
  for (int64_t k = 0; k < count; k += kLanes) {
    const VF x = LoadVector(decay + k);
    const VF closed = hn::Set(d, -std::numeric_limits<float>::infinity());
    StoreVector(hn::IfThenElse(hn::Eq(x, hn::Zero(d)), closed, hn::Log(d, x)), logs);
    Narrow(logs, count - k < kLanes ? count - k : kLanes, DType::fp16, to + k * size_of(DType::fp16));
  }
}
void LoadLogDecay(const std::byte* from, int64_t count, int64_t padded, float* decay) {
  Widen(from, DType::fp16, count, decay);
  for (int64_t k = count; k < padded; ++k) decay[k] = 0.0f;
  for (int64_t k = 0; k < padded; k += kLanes) StoreVector(Exp(LoadVector(decay + k)), decay + k);
}

float ExpOne(float x) { return hn::GetLane(Exp(hn::Set(F(), x))); }

HWY_INLINE void WidenPadded(const std::byte* from, DType dtype, int64_t count, int64_t padded, float* to) {
  Widen(from, dtype, count, to);
  for (int64_t i = count; i < padded; ++i) to[i] = 0.0f;
}

// 1/sqrt(sum x^2 + eps)
HWY_INLINE float ReciprocalNorm(const float* x, int64_t padded) {
  VF sum = hn::Zero(F());
  for (int64_t k = 0; k < padded; k += kLanes) {
    const VF v = LoadVector(x + k);
    sum = hn::MulAdd(v, v, sum);
  }
  const VF norm = hn::Sqrt(hn::Set(F(), LaneSum(sum) + kL2NormEpsilon));
  return hn::GetLane(hn::Div(hn::Set(F(), 1.0f), norm));
}

// The same in double precision, in two chains of sums.
HWY_INLINE NormFactor PreciseReciprocalNorm(const float* x, int64_t padded) {
  const hn::ScalableTag<double> wide;
  const hn::Rebind<float, decltype(wide)> narrow;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(wide));
  static_assert(kKeyMultiple % (2 * hn::MaxLanes(wide)) == 0);
  auto even = hn::Zero(wide), odd = hn::Zero(wide);
  for (int64_t k = 0; k < padded; k += 2 * lanes) {
    const auto first = hn::PromoteTo(wide, hn::LoadU(narrow, x + k));
    const auto second = hn::PromoteTo(wide, hn::LoadU(narrow, x + k + lanes));
    even = hn::MulAdd(first, first, even);
    odd = hn::MulAdd(second, second, odd);
  }
  const double total = hn::GetLane(hn::SumOfLanes(wide, hn::Add(even, odd))) + double{kL2NormEpsilon};
  const double factor = 1.0 / std::sqrt(total);
  NormFactor result;
  result.high = static_cast<float>(factor);
  result.low = static_cast<float>(factor - double{result.high});
  return result;
}

HWY_INLINE VF Normalised(VF key, VF high, VF low) { return hn::MulAdd(key, high, hn::Mul(key, low)); }

void NormaliseKey(float* key, int64_t padded, NormFactor factor) {
  const VF high = hn::Set(F(), factor.high), low = hn::Set(F(), factor.low);
  for (int64_t k = 0; k < padded; k += kLanes) StoreVector(Normalised(LoadVector(key + k), high, low), key + k);
}

// x holds the raw gate and receives exp(g). bias: [padded], used by gates with one.
template <Gate kGate>
HWY_INLINE void DecayFrom(const HeadParameters& head, int64_t padded, float* HWY_RESTRICT x) {
  const F d;
  const VF exp_A = hn::Set(d, head.exp_A), negative_exp_A = hn::Set(d, -head.exp_A);
  const VF lower_bound = hn::Set(d, head.lower_bound);
  const float* HWY_RESTRICT bias = head.bias;
  for (int64_t k = 0; k < padded; k += kLanes) {
    VF g = LoadVector(x + k);
    if constexpr (kGate == Gate::softplus) {
      g = hn::Mul(negative_exp_A, Softplus(hn::Add(g, LoadVector(bias + k))));
    } else if constexpr (kGate == Gate::bounded) {
      g = hn::Mul(lower_bound, Sigmoid(hn::Mul(exp_A, hn::Add(g, LoadVector(bias + k)))));
    }
    StoreVector(g, x + k);
  }
  // A pass of its own: in one chain with the gate they take 1.15 times as long, since fewer vectors are in flight.
  for (int64_t k = 0; k < padded; k += kLanes) StoreVector(Exp(LoadVector(x + k)), x + k);
}
HWY_INLINE void DecayFromGate(const HeadParameters& head, int64_t padded, float* x) {
  if (head.gate == Gate::softplus) return DecayFrom<Gate::softplus>(head, padded, x);
  if (head.gate == Gate::bounded) return DecayFrom<Gate::bounded>(head, padded, x);
  return DecayFrom<Gate::precomputed>(head, padded, x);
}

HWY_INLINE float StepSize(Beta form, float b) {
  if (form == Beta::none) return b;
  const float s = hn::GetLane(Sigmoid(hn::Set(F(), b)));
  return form == Beta::sigmoid2 ? 2.0f * s : s;
}

void Prepare(const PrepareArgs& args) {
  const F d;
  const HeadParameters& head = *args.head;
  PreparedToken& token = *args.token;
  const int64_t padded = padded_key(args.key_dim);
  float* query = token.decayed_query;  // until it is overwritten with d*q

  // The norms first: sums over lanes, roots and divisions take long, and the gate does not wait for them.
  WidenPadded(args.q, args.io, args.key_dim, padded, query);
  WidenPadded(args.k, args.io, args.key_dim, padded, token.key);
  float query_factor = head.scale;
  NormFactor key_factor;
  if (head.qk_l2norm) {
    query_factor *= ReciprocalNorm(query, padded);
    key_factor = PreciseReciprocalNorm(token.key, padded);
  }
  WidenPadded(args.a, args.gate_dtype, args.key_dim, padded, token.decay);
  DecayFromGate(head, padded, token.decay);
  WidenPadded(args.v, args.io, args.value_dim, padded_value(args.value_dim), token.value);
  token.beta = StepSize(head.beta, load_element(args.b, args.beta_dtype, 0));

  *args.key_rnorm = key_factor;

  const VF query_scale = hn::Set(d, query_factor);
  const VF key_high = hn::Set(d, key_factor.high), key_low = hn::Set(d, key_factor.low);
  VF dot = hn::Zero(d);
  for (int64_t k = 0; k < padded; k += kLanes) {
    const VF decay = LoadVector(token.decay + k);
    const VF key = Normalised(LoadVector(token.key + k), key_high, key_low);
    const VF q = hn::Mul(LoadVector(query + k), query_scale);
    dot = hn::MulAdd(key, q, dot);
    StoreVector(key, token.key + k);
    StoreVector(hn::Mul(decay, key), token.decayed_key + k);
    StoreVector(hn::Mul(decay, q), token.decayed_query + k);
  }
  token.key_query = LaneSum(dot);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace KDA_TARGET_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();
#endif
