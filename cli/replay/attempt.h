// One replay from bytes in memory, for fuzzers and mutation tests: whatever the bytes, it ends with an answer.
#pragma once

#include <cstddef>
#include <span>

#include "kda/kda.h"

namespace kda::cli::replay {

enum class Attempt {
  kNotSafetensors,  // refused by the reader
  kNotACase,        // refused by the checks of metadata and tensors
  kNotPlanned,      // refused by the planner
  kNotRun,          // refused by the call
  kFailed,          // ran, and an expectation was not met
  kPassed,
};

// Runs on the reference backend. Cases above max_elements of work are planned but not run.
Attempt attempt(std::span<const std::byte> bytes, const kda_context* context, int64_t max_elements = 1 << 20);

}  // namespace kda::cli::replay
