// The target that Highway does not know; see target_avx512_bf16.cpp.
#pragma once

#include "cpu/target_functions.h"

// Its target region is a GCC pragma; clang would need another form.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define KDA_WITH_AVX512_BF16 1
#else
#define KDA_WITH_AVX512_BF16 0
#endif

namespace kda::cpu {

#if KDA_WITH_AVX512_BF16
const TargetFunctions& avx512_bf16_functions();
bool avx512_bf16_available();
#endif

}  // namespace kda::cpu
