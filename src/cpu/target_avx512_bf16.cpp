// AVX-512 with the instruction that rounds fp32 to bf16, which Debian 12's Highway has no target for: the bodies of the
// AVX-512 target once more, with that one instruction in place of eight.
#include "cpu/target_avx512_bf16.h"

#if KDA_WITH_AVX512_BF16

#define KDA_TARGET_NAMESPACE N_AVX512_BF16
#define KDA_BEFORE_BODY _Pragma("GCC target(\"avx512bf16\")")
#define KDA_HAS_BF16_ROUNDING 1

#include <immintrin.h>

// Only AVX-512 besides the baseline, which cannot be left out.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/target_avx512_bf16.cpp"  // this file, once more per target
#include "hwy/foreach_target.h"                          // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX3
#include "cpu/chunk-inl.h"
#include "cpu/conv_step-inl.h"
#include "cpu/prepare-inl.h"
#include "cpu/state_step-inl.h"
#include "cpu/vector-inl.h"

namespace kda::cpu::N_AVX512_BF16 {

constexpr TargetFunctions kFunctions = {.name = "AVX512_BF16",
                                        .lanes = kLanes,
                                        .widen = Widen,
                                        .narrow = Narrow,
                                        .exp = ExpOne,
                                        .prepare = Prepare,
                                        .normalise_key = NormaliseKey,
                                        .store_log_decay = StoreLogDecay,
                                        .load_log_decay = LoadLogDecay,
                                        .step = Step,
                                        .decode = Decode,
                                        .mix_chunk = MixChunk,
                                        .run_chunk = RunChunk,
                                        .solve_chunk = SolveWholeChunk,
                                        .transpose = Transpose,
                                        .conv_step = ConvStep,
                                        .split_taps = SplitTaps,
                                        .join_taps = JoinTaps};

}  // namespace kda::cpu::N_AVX512_BF16
#endif  // HWY_TARGET == HWY_AVX3

#if HWY_ONCE
namespace kda::cpu {

const TargetFunctions& avx512_bf16_functions() { return N_AVX512_BF16::kFunctions; }

bool avx512_bf16_available() {
  return (hwy::SupportedTargets() & HWY_AVX3) != 0 && __builtin_cpu_supports("avx512bf16");
}

}  // namespace kda::cpu
#endif  // HWY_ONCE

#endif  // KDA_WITH_AVX512_BF16
