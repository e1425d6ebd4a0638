// What this machine can do at best, measured in the same run as the kernels it is compared with.
#pragma once

#include <cstdint>
#include <string>

namespace kda::cli::bench {

struct Machine {
  std::string target;         // SIMD target of the multiply-add loop
  int lanes = 1;              // fp32 lanes of a vector
  double fma_per_second = 0;  // vector multiply-adds a second, all threads together, the best piece
  double in_place_bytes = 0;  // bytes a second of an in-place pass (each byte read and written) past the caches, median
  int64_t cold_bytes = 0;     // size of the buffer of that pass
  double cached_bytes = 0;    // the same over 512 KiB a thread again and again: what the caches carry, the best pass
};

// Runs on `threads` threads for about half a second.
Machine measure_machine(int threads, int64_t cold_bytes);

}  // namespace kda::cli::bench
