// Which instruction sets the runner's kernels are compiled for, in one place. Include before hwy/foreach_target.h.
// Left out: those with the float instructions of a lower one, and SVE, whose vectors have no size when compiling.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

// Before a loop over a block's registers: it must vanish, or the block lives in memory (GCC at -O2 keeps such loops).
#if defined(__clang__)
#define KDA_UNROLL _Pragma("clang loop unroll(full)")
#else
#define KDA_UNROLL _Pragma("GCC unroll 16")
#endif
