// The first need of a kernel that a problem or a machine does not meet.
#pragma once

#include "core/kernel.h"
#include "core/text.h"
#include "plan/capabilities.h"

namespace kda {

// KDA_OK, or the code of the first unmet need with its text: "io fp16; kernel serves bf16, fp32".
Status first_unmet_need(const KernelRow& row, const Problem& problem, const Capabilities& capabilities,
                        FixedText<>* reason);

// The numerics that the problem asks of an operation. Decode, move and convolution have one form, which is exact.
Numerics numerics_of(const Problem& problem, Operation operation);

}  // namespace kda
