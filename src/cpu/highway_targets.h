// Which Highway targets are compiled: included before every Highway header.
#pragma once

// The SSE-only targets and the Ice Lake variant of AVX-512 would add build time and no speed worth having.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
