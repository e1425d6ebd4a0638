// Compares what a case's calls wrote with what its file expects.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/replay/case.h"
#include "cli/replay/run.h"

namespace kda::cli::replay {

// The verdict on one expect.* tensor. Errors are ||x - y||_2 / ||y||_2 over live elements.
struct Verdict {
  std::string tensor;
  double error = 0;
  double limit = 0;         // of the whole tensor; any one unit may reach kUnitFactor times it
  double worst_error = 0;   // of one unit
  int64_t worst_row = -1;   // row of the call, slot of a pool or entry of the snapshot list
  int64_t worst_head = -1;  // -1 in conv tensors, which have no heads
  int64_t live = 0;         // elements compared by their error
  int64_t untouched = 0;    // elements that had to keep their bits, or to be zero in null rows
  bool bits_equal = false;  // every live element equals the expectation exactly
  bool judged = true;       // false: cannot be compared here; `fault` says why
  bool pass = false;
  std::string fault;  // the first rule broken beyond the error; empty if none
};

std::vector<Verdict> judge(const Case& replay, const PreparedPlan& prepared, const std::string& target,
                           const Outputs& outputs);

}  // namespace kda::cli::replay
