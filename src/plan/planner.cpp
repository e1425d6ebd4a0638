#include "plan/planner.h"

#include <algorithm>

#include "plan/names.h"
#include "plan/needs.h"

namespace kda {
namespace {

bool is_planned(const Problem& problem, int operation) { return (problem.operations >> operation & 1) != 0; }

int64_t workspace_of(const KernelRow& row, const Problem& problem) {
  return row.workspace == nullptr ? 0 : row.workspace(problem);
}
bool workspace_fits(const KernelRow& row, const Problem& problem) {
  return workspace_of(row, problem) <= problem.max_workspace_bytes;
}
FixedText<> workspace_text(const KernelRow& row, const Problem& problem) {
  return FixedText<>("%s with %s: %lld bytes of workspace", name_of(row.operation), row.name,
                     static_cast<long long>(workspace_of(row, problem)));
}

bool comes_before(const KernelRow& row, const KernelRow& other, const Problem& problem) {
  const bool fits = workspace_fits(row, problem), other_fits = workspace_fits(other, problem);
  return fits != other_fits ? fits : row.priority > other.priority;
}

// The kernel of one operation on one backend: the forced one, or the fit one of the highest priority. One whose
// workspace is above the limit comes after all others: it is what the refusal names if there is no other.
Status choose_kernel(std::span<const KernelRow> rows, const Request& request, const Capabilities& capabilities,
                     Backend backend, Operation operation, const KernelRow** chosen, const ErrorSink& sink) {
  const KernelRow* forced = request.forced[static_cast<size_t>(operation)];
  if (forced != nullptr) {
    FixedText<> reason;
    const Status unmet = first_unmet_need(*forced, request.problem, capabilities, &reason);
    if (unmet != KDA_OK || forced->backend != backend) {
      if (unmet == KDA_OK) reason = FixedText<>("it is a kernel of backend %s", name_of(forced->backend));
      return sink.failf(KDA_E_KERNEL_UNFIT, "%s=%s on backend %s", reason, name_of(operation), forced->name,
                        name_of(backend));
    }
    *chosen = forced;
    return KDA_OK;
  }
  const KernelRow* best = nullptr;
  FixedText<> first_reason;
  for (const KernelRow& row : rows) {
    if (row.operation != operation || row.backend != backend) continue;
    FixedText<> reason;
    if (first_unmet_need(row, request.problem, capabilities, &reason) != KDA_OK) {
      if (first_reason.empty()) first_reason.add("%s: %s", row.name, reason.c_str());
    } else if (best == nullptr || comes_before(row, *best, request.problem)) {
      best = &row;
    }
  }
  if (best == nullptr) {
    if (first_reason.empty()) first_reason.add("backend %s has no kernel for it", name_of(backend));
    return sink.failf(KDA_E_NO_KERNEL, "%s on backend %s", first_reason, name_of(operation), name_of(backend));
  }
  *chosen = best;
  return KDA_OK;
}

Status choose_on_backend(std::span<const KernelRow> rows, const Request& request, const Capabilities& capabilities,
                         Backend backend, Choice* choice, const ErrorSink& sink) {
  *choice = {.backend = backend};
  if (const char* missing = capabilities.missing(backend)) {
    return sink.failf(KDA_E_BACKEND, "backend %s: %s", "a backend of this build and machine: cpu, reference",
                      name_of(backend), missing);
  }
  for (int op = 0; op < kOperationCount; ++op) {
    if (!is_planned(request.problem, op)) continue;
    const KernelRow*& kernel = choice->kernels[static_cast<size_t>(op)];
    if (Status s = choose_kernel(rows, request, capabilities, backend, static_cast<Operation>(op), &kernel, sink)) {
      return s;
    }
    choice->workspace_bytes = std::max(choice->workspace_bytes, workspace_of(*kernel, request.problem));
    if (!workspace_fits(*kernel, request.problem)) {
      return sink.fail(
          KDA_E_WORKSPACE_LIMIT, workspace_text(*kernel, request.problem),
          FixedText<>("max_workspace_bytes = %lld", static_cast<long long>(request.problem.max_workspace_bytes)));
    }
  }
  // A limit too small for the lists of the largest call leaves room for smaller ones.
  const int64_t room = request.problem.max_workspace_bytes - choice->list_offset();
  choice->list_bytes = std::clamp<int64_t>(backend_list_bytes(backend, request.problem), 0, std::max<int64_t>(room, 0));
  return KDA_OK;
}

Status check_forced_are_planned(const Request& request, const ErrorSink& sink) {
  for (const KernelRow* forced : request.forced) {
    if (forced == nullptr || is_planned(request.problem, static_cast<int>(forced->operation))) continue;
    return sink.failf(KDA_E_KERNEL_UNFIT, "%s=%s", "a forced kernel only for an operation of kda_problem.operations",
                      name_of(forced->operation), forced->name);
  }
  return KDA_OK;
}

}  // namespace

Status choose_kernels(std::span<const KernelRow> rows, const Request& request, const Capabilities& capabilities,
                      Choice* choice, const ErrorSink& sink) {
  if (Status s = check_forced_are_planned(request, sink)) return s;
  if (request.backend != KDA_BACKEND_AUTO) {
    return choose_on_backend(rows, request, capabilities, static_cast<Backend>(request.backend), choice, sink);
  }
  // The refusal reported is that of the backend a forced kernel belongs to, or else of the last one, which serves most.
  const auto forced =
      std::find_if(request.forced.begin(), request.forced.end(), [](auto* row) { return row != nullptr; });
  const Backend reporting = forced != request.forced.end() ? (*forced)->backend : kBackends[kBackendCount - 1];
  for (Backend backend : kBackends) {
    if (choose_on_backend(rows, request, capabilities, backend, choice, ErrorSink{}) == KDA_OK) return KDA_OK;
  }
  return choose_on_backend(rows, request, capabilities, reporting, choice, sink);
}

Status explain_candidate(const KernelRow& row, const Request& request, const Capabilities& capabilities,
                         const Choice& choice, FixedText<>* reason) {
  if (Status unmet = first_unmet_need(row, request.problem, capabilities, reason)) return unmet;
  const auto operation = static_cast<size_t>(row.operation);
  const KernelRow* taken = choice.kernels[operation];
  const bool was_forced = taken != nullptr && request.forced[operation] == taken;
  if (&row == taken) {
    *reason = was_forced ? FixedText<>("forced") : FixedText<>("the first choice of backend %s", name_of(row.backend));
  } else if (row.backend != choice.backend) {
    *reason = FixedText<>("the plan runs on backend %s", name_of(choice.backend));
  } else if (!was_forced && !workspace_fits(row, request.problem)) {
    *reason = workspace_text(row, request.problem);
    reason->add("; max_workspace_bytes = %lld", static_cast<long long>(request.problem.max_workspace_bytes));
  } else {
    *reason = FixedText<>("%s %s", taken->name, was_forced ? "was forced" : "comes first");
  }
  return KDA_OK;
}

}  // namespace kda
