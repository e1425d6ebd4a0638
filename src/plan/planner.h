// Chooses the kernels of a plan. Reads data, executes nothing, allocates nothing.
#pragma once

#include <array>
#include <span>

#include "core/text.h"
#include "plan/capabilities.h"
#include "plan/request.h"

namespace kda {

// Of the workspace's address: a cache line on the CPU; what CUDA allocations have.
constexpr size_t kWorkspaceAlignment = 64, kCudaWorkspaceAlignment = 256;

struct Choice {
  Backend backend = Backend::reference;
  std::array<const KernelRow*, kOperationCount> kernels{};  // null: not planned
  int64_t workspace_bytes = 0;                              // the most that one operation needs
  int64_t list_bytes = 0;  // more workspace, behind it, for calls that bring index lists in host memory (CUDA)

  int64_t list_offset() const {
    constexpr auto kAlignment = static_cast<int64_t>(kCudaWorkspaceAlignment);
    return (workspace_bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  int64_t all_workspace_bytes() const { return list_bytes == 0 ? workspace_bytes : list_offset() + list_bytes; }
};

// Where AUTO is asked, the first backend (cuda, cpu, reference) that serves every operation of the problem.
Status choose_kernels(std::span<const KernelRow> rows, const Request& request, const Capabilities& capabilities,
                      Choice* choice, const ErrorSink& sink);

// Why a kernel was taken, passed over or refused: the text for kda_candidate. The status is that of its first unmet
// need, or KDA_OK.
Status explain_candidate(const KernelRow& row, const Request& request, const Capabilities& capabilities,
                         const Choice& choice, FixedText<>* reason);

}  // namespace kda
