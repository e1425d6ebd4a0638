// kda info --self-test: every kernel of this build and machine against the reference, on a few shapes of random inputs.
#pragma once

#include <string>
#include <vector>

#include "kda/kda.h"

namespace kda::cli {

struct SelfTestResult {
  std::string kernel, operation, shape;
  bool ran = false;  // false: the kernel does not serve this shape, `detail` says why
  bool pass = false;
  double error = 0;    // the largest over the compared tensors, as a part of its limit
  std::string detail;  // the first fault or refusal
};

// operation: a kda_operation. The reference computes what is expected.
std::vector<SelfTestResult> self_test(const kda_context* context, const std::string& kernel,
                                      const std::string& operation_name, int backend);

}  // namespace kda::cli
