// Which instruction sets the runner's kernels are compiled for, in one place. Include before hwy/foreach_target.h.
// Left out: sets that would only cost build time, since they have the float instructions of a lower one.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

// Before a loop over a block's registers: it must vanish, or the block lives in memory (GCC at -O2 keeps such loops).
#if defined(__clang__)
#define KDA_UNROLL _Pragma("clang loop unroll(full)")
#else
#define KDA_UNROLL _Pragma("GCC unroll 16")
#endif
