// Chooses the kernels of a plan. Reads data, executes nothing, allocates nothing.
#pragma once

#include <array>
#include <span>

#include "core/text.h"
#include "plan/capabilities.h"
#include "plan/request.h"

namespace kda {

struct Choice {
  Backend backend = Backend::reference;
  std::array<const KernelRow*, kOperationCount> kernels{};  // null: not planned
  int64_t workspace_bytes = 0;                              // the most that one operation needs
};

// Where AUTO is asked, the first backend (cuda, cpu, reference) that serves every operation of the problem.
Status choose_kernels(std::span<const KernelRow> rows, const Request& request, const Capabilities& capabilities,
                      Choice* choice, const ErrorSink& sink);

// Why a kernel was taken, passed over or refused: the text for kda_candidate. The status is that of its first unmet
// need, or KDA_OK.
Status explain_candidate(const KernelRow& row, const Request& request, const Capabilities& capabilities,
                         const Choice& choice, FixedText<>* reason);

}  // namespace kda
