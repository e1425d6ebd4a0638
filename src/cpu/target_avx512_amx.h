// AVX-512 with the matrix tiles of AMX; see target_avx512_amx.cpp.
#pragma once

#include "cpu/target_avx512_bf16.h"

#if KDA_WITH_AVX512_BF16 && defined(__linux__)
#define KDA_WITH_AVX512_AMX 1
#else
#define KDA_WITH_AVX512_AMX 0
#endif

namespace kda::cpu {

#if KDA_WITH_AVX512_AMX
const TargetFunctions& avx512_amx_functions();
// Asks the kernel, once, for the right to use tiles in this process.
bool avx512_amx_available();
#endif

}  // namespace kda::cpu
