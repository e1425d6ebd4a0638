// One token applied to a block of state rows: the only place where the recurrence is computed. Compiled once per
// target.
//
// Rows are taken kBlock at a time so that both sums over K of all of them (2*kBlock accumulators) stay in registers and
// are reduced together: log2(lanes) rounds of pairwise sums turn `lanes` accumulators into one vector that holds each
// row's sum. Update and the next token's sums are made in one pass: four multiply-adds for one load and one store.
#if defined(KDA_CPU_STATE_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_STATE_STEP_INL_H_
#undef KDA_CPU_STATE_STEP_INL_H_
#else
#define KDA_CPU_STATE_STEP_INL_H_
#endif

#include "cpu/vector-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
KDA_BEFORE_BODY
namespace kda::cpu {
namespace KDA_TARGET_NAMESPACE {

constexpr int kBlockRows = kLanes > 1 ? kLanes / 2 : 4;

// u = beta*(v - prediction), out = query sum + (k.q)*u for as many rows as D has lanes.
template <class D, class V>
HWY_INLINE void FinishRows(D d, V prediction, V query_sum, PreparedToken& next, int64_t row) {
  const V u = hn::Mul(hn::Set(d, next.beta), hn::Sub(hn::LoadU(d, next.value + row), prediction));
  hn::StoreU(u, d, next.correction + row);
  hn::StoreU(hn::MulAdd(hn::Set(d, next.key_query), u, query_sum), d, next.out + row);
}

// sums: kBlock accumulators of predictions, then kBlock of query sums.
template <int kBlock>
HWY_INLINE void FinishBlock(VF* sums, PreparedToken& next, int64_t row) {
  if constexpr (kBlock > 1 && 2 * kBlock == kLanes) {
#if HWY_TARGET != HWY_SCALAR
    Unroll<kLanes / 2>([&](auto i) HWY_ATTR { sums[i] = PairSums(sums[2 * i], sums[2 * i + 1]); });
    if constexpr (kLanes >= 4) {
      Unroll<kLanes / 4>([&](auto i) HWY_ATTR { sums[i] = PairSums(sums[2 * i], sums[2 * i + 1]); });
    }
    if constexpr (kLanes >= 8) {
      Unroll<kLanes / 8>([&](auto i) HWY_ATTR { sums[i] = PairSums(sums[2 * i], sums[2 * i + 1]); });
    }
    if constexpr (kLanes >= 16) {
      Unroll<kLanes / 16>([&](auto i) HWY_ATTR { sums[i] = PairSums(sums[2 * i], sums[2 * i + 1]); });
    }
    static_assert(kLanes <= 16);
    const hn::Half<F> half;
    FinishRows(half, hn::LowerHalf(half, sums[0]), hn::UpperHalf(half, sums[0]), next, row);
#endif
  } else {
    const hn::CappedTag<float, 1> one;
    for (int r = 0; r < kBlock; ++r) {
      FinishRows(one, hn::Set(one, LaneSum(sums[r])), hn::Set(one, LaneSum(sums[kBlock + r])), next, row + r);
    }
  }
}

// Source and Target: float or Bf16, the dtype of the rows. kKey: the padded K if it is known when compiling and rows
// are that far apart (then all rows of a block are reached from one pointer), else 0.
template <int kBlock, bool kUpdate, bool kNext, int kKey, class Source, class Target>
HWY_INLINE void StepBlock(const StepArgs& args, int64_t row) {
  const F d;
  const Source* source = reinterpret_cast<const Source*>(args.source.data) + row * args.source.stride;
  Target* target = kUpdate ? reinterpret_cast<Target*>(args.target.data) + row * args.target.stride : nullptr;
  const int64_t source_stride = kKey > 0 ? kKey : args.source.stride;
  const int64_t target_stride = kKey > 0 ? kKey : args.target.stride;
  const int64_t key_padded = kKey > 0 ? kKey : args.key_padded;
  const int64_t head_row = args.first_row + row;
  VF sums[2 * kBlock], u[kBlock];
  if constexpr (kNext) Unroll<2 * kBlock>([&](auto i) HWY_ATTR { sums[i] = hn::Zero(d); });
  if constexpr (kUpdate) {
    Unroll<kBlock>([&](auto r) HWY_ATTR { u[r] = hn::Set(d, args.update->correction[head_row + r]); });
  }
  const float* decay = kUpdate ? args.update->decay : nullptr;
  const float* key = kUpdate ? args.update->key : nullptr;
  const float* next_key = kNext ? args.next->decayed_key : nullptr;
  const float* next_query = kNext ? args.next->decayed_query : nullptr;

  for (int64_t k = 0; k < key_padded; k += kLanes) {
    VF decay_k, key_k, next_key_k, next_query_k;
    if constexpr (kUpdate) {
      decay_k = hn::LoadU(d, decay + k);
      key_k = hn::LoadU(d, key + k);
    }
    if constexpr (kNext) {
      next_key_k = hn::LoadU(d, next_key + k);
      next_query_k = hn::LoadU(d, next_query + k);
    }
    Unroll<kBlock>([&](auto r) HWY_ATTR {
      // A pass that only reads is the first over these rows, often from memory: fetch the block after this one.
      if constexpr (!kUpdate && kBlock > 1) hwy::Prefetch(source + (r + kBlock) * source_stride + k);
      VF s = LoadVector(source + r * source_stride + k);
      if constexpr (kUpdate) {
        s = hn::MulAdd(u[r], key_k, hn::Mul(s, decay_k));
        StoreVector(s, target + r * target_stride + k);
        if constexpr (kNext) s = Rounded(s, target);
      }
      if constexpr (kNext) {
        if constexpr (!kUpdate) KeepInRegister(s);
        sums[r] = hn::MulAdd(s, next_key_k, sums[r]);
        sums[kBlock + r] = hn::MulAdd(s, next_query_k, sums[kBlock + r]);
      }
    });
  }
  if constexpr (kNext) FinishBlock<kBlock>(sums, *args.next, head_row);
}

template <bool kUpdate, bool kNext, int kKey, class Source, class Target>
void StepRows(const StepArgs& args) {
  int64_t row = 0;
  for (; row + kBlockRows <= args.rows; row += kBlockRows) {
    StepBlock<kBlockRows, kUpdate, kNext, kKey, Source, Target>(args, row);
  }
  for (; row < args.rows; ++row) StepBlock<1, kUpdate, kNext, 0, Source, Target>(args, row);
}

constexpr int kUsualKey = 128;  // the head size of every published checkpoint

template <bool kUpdate, bool kNext, class Source, class Target>
void StepAllRows(const StepArgs& args) {
  if (args.key_padded == kUsualKey && args.source.stride == kUsualKey &&
      (!kUpdate || args.target.stride == kUsualKey)) {
    return StepRows<kUpdate, kNext, kUsualKey, Source, Target>(args);
  }
  return StepRows<kUpdate, kNext, 0, Source, Target>(args);
}

template <class Source>
void StepFrom(const StepArgs& args) {
  if (args.update == nullptr) return StepAllRows<false, true, Source, float>(args);
  const bool next = args.next != nullptr;
  if (args.target.dtype == DType::fp32) {
    return next ? StepAllRows<true, true, Source, float>(args) : StepAllRows<true, false, Source, float>(args);
  }
  return next ? StepAllRows<true, true, Source, Bf16>(args) : StepAllRows<true, false, Source, Bf16>(args);
}

// One token over kBlock rows, read and updated in two passes; the reading pass of the next kBlock rows runs beside the
// updating one, so that neither waits for the other's sums and traffic with the caches is even (decode in cache 1.3
// times as fast as pass after pass). kRead, kUpdate: which of the two there is, at the ends of a range.
template <bool kRead, bool kUpdate, int kKey, class Source, class Target>
HWY_INLINE void DecodeBlock(const StepArgs& args, int64_t row) {
  constexpr int kBlock = kBlockRows;
  const F d;
  const int64_t source_stride = kKey > 0 ? kKey : args.source.stride;
  const int64_t target_stride = kKey > 0 ? kKey : args.target.stride;
  const int64_t key_padded = kKey > 0 ? kKey : args.key_padded;
  const Source* updated = reinterpret_cast<const Source*>(args.source.data) + row * source_stride;
  const Source* read = updated + kBlock * source_stride;
  Target* target = reinterpret_cast<Target*>(args.target.data) + row * target_stride;
  PreparedToken& token = *args.next;
  VF sums[2 * kBlock], u[kBlock];
  if constexpr (kRead) Unroll<2 * kBlock>([&](auto i) HWY_ATTR { sums[i] = hn::Zero(d); });
  if constexpr (kUpdate) {
    const float* correction = token.correction + args.first_row + row;
    Unroll<kBlock>([&](auto r) HWY_ATTR { u[r] = hn::Set(d, correction[r]); });
  }
  for (int64_t k = 0; k < key_padded; k += kLanes) {
    VF decay, key, decayed_key, decayed_query;
    if constexpr (kUpdate) {
      decay = hn::LoadU(d, token.decay + k);
      key = hn::LoadU(d, token.key + k);
    }
    if constexpr (kRead) {
      decayed_key = hn::LoadU(d, token.decayed_key + k);
      decayed_query = hn::LoadU(d, token.decayed_query + k);
    }
    Unroll<kBlock>([&](auto r) HWY_ATTR {
      if constexpr (kRead) {
        hwy::Prefetch(read + (r + 2 * kBlock) * source_stride + k);
        VF s = LoadVector(read + r * source_stride + k);
        KeepInRegister(s);
        sums[r] = hn::MulAdd(s, decayed_key, sums[r]);
        sums[kBlock + r] = hn::MulAdd(s, decayed_query, sums[kBlock + r]);
      }
      if constexpr (kUpdate) {
        const VF s = LoadVector(updated + r * source_stride + k);
        StoreVector(hn::MulAdd(u[r], key, hn::Mul(s, decay)), target + r * target_stride + k);
      }
    });
  }
  if constexpr (kRead) FinishBlock<kBlock>(sums, token, args.first_row + row + kBlock);
}

template <int kKey, class Source, class Target>
void DecodeRows(const StepArgs& args) {
  constexpr int kBlock = kBlockRows;
  int64_t row = 0;
  if (args.rows >= kBlock) {
    DecodeBlock<true, false, kKey, Source, Target>(args, -kBlock);
    for (; row + 2 * kBlock <= args.rows; row += kBlock) DecodeBlock<true, true, kKey, Source, Target>(args, row);
    DecodeBlock<false, true, kKey, Source, Target>(args, row);
    row += kBlock;
  }
  for (; row < args.rows; ++row) {
    StepBlock<1, false, true, 0, Source, float>(args, row);
    StepArgs update = args;
    update.update = args.next;
    StepBlock<1, true, false, 0, Source, Target>(update, row);
  }
}

template <class Source, class Target>
void DecodeAllRows(const StepArgs& args) {
  if (args.key_padded == kUsualKey && args.source.stride == kUsualKey && args.target.stride == kUsualKey) {
    return DecodeRows<kUsualKey, Source, Target>(args);
  }
  return DecodeRows<0, Source, Target>(args);
}

void Decode(const StepArgs& args) {
  const bool fp32 = args.target.dtype == DType::fp32;
  if (args.source.dtype == DType::fp32) {
    return fp32 ? DecodeAllRows<float, float>(args) : DecodeAllRows<float, Bf16>(args);
  }
  return fp32 ? DecodeAllRows<Bf16, float>(args) : DecodeAllRows<Bf16, Bf16>(args);
}

void Step(const StepArgs& args) {
  return args.source.dtype == DType::fp32 ? StepFrom<float>(args) : StepFrom<Bf16>(args);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace KDA_TARGET_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();
#endif
