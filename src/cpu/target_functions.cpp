#include "cpu/target_functions.h"

#include "cpu/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/target_functions.cpp"  // this file, once more per target
#include "hwy/foreach_target.h"                        // IWYU pragma: keep
// After foreach_target.h:
#include "cpu/chunk-inl.h"
#include "cpu/conv_step-inl.h"
#include "cpu/prepare-inl.h"
#include "cpu/state_step-inl.h"
#include "cpu/target_avx512_amx.h"
#include "cpu/targets.h"
#include "cpu/vector-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3
constexpr const char* kTargetName = "AVX512";
#elif HWY_TARGET == HWY_AVX2
constexpr const char* kTargetName = "AVX2";
#elif HWY_TARGET == HWY_NEON
constexpr const char* kTargetName = "NEON";
#else
constexpr const char* kTargetName = "SCALAR";
#endif

constexpr TargetFunctions kFunctions = {.name = kTargetName,
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

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kda {
namespace cpu {
namespace {

struct Target {
  int64_t bit;
  const TargetFunctions* functions;
};

// Worst first.
constexpr Target kTargets[] = {
#if HWY_TARGETS & HWY_SCALAR
    {HWY_SCALAR, &N_SCALAR::kFunctions},
#endif
#if HWY_TARGETS & HWY_EMU128
    {HWY_EMU128, &N_EMU128::kFunctions},
#endif
#if HWY_TARGETS & HWY_NEON
    {HWY_NEON, &N_NEON::kFunctions},
#endif
#if HWY_TARGETS & HWY_AVX2
    {HWY_AVX2, &N_AVX2::kFunctions},
#endif
#if HWY_TARGETS & HWY_AVX3
    {HWY_AVX3, &N_AVX3::kFunctions},
#endif
};
constexpr int kHighwayTargets = static_cast<int>(std::size(kTargets));

}  // namespace

const TargetFunctions& target_functions(int target) {
#if KDA_WITH_AVX512_BF16
  if (target == kHighwayTargets) return avx512_bf16_functions();
#endif
#if KDA_WITH_AVX512_AMX
  if (target == kHighwayTargets + 1) return avx512_amx_functions();
#endif
  return *kTargets[target].functions;
}

}  // namespace cpu

int cpu_target_count() { return cpu::kHighwayTargets + KDA_WITH_AVX512_BF16 + KDA_WITH_AVX512_AMX; }
const char* cpu_target_name(int target) { return cpu::target_functions(target).name; }

bool cpu_target_available(int target) {
  if (target < 0 || target >= cpu_target_count()) return false;
#if KDA_WITH_AVX512_BF16
  if (target == cpu::kHighwayTargets) return cpu::avx512_bf16_available();
#endif
#if KDA_WITH_AVX512_AMX
  if (target == cpu::kHighwayTargets + 1) return cpu::avx512_amx_available();
#endif
  const int64_t bit = cpu::kTargets[target].bit;
  return (bit & (HWY_STATIC_TARGET | HWY_SCALAR | HWY_EMU128)) != 0 || (hwy::SupportedTargets() & bit) != 0;
}

int cpu_best_target() {
  int best = cpu_target_count() - 1;
  while (best > 0 && !cpu_target_available(best)) --best;
  return best;
}

}  // namespace kda
#endif  // HWY_ONCE
