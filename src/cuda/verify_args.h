// The kernel arguments of a verify launch.
#pragma once

#include "cuda/device/sequence.cuh"

namespace kda::cuda {

SequenceArgs verify_args(const Problem& p, const VerifyLaunch& launch, const Execution& execution);

// check_values, where the plan has it.
Status check_verify(const Problem& p, const VerifyLaunch& launch, const SequenceArgs& args, const Execution& execution);

}  // namespace kda::cuda
