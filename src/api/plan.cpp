// Plans: made, refused, asked about and described.
#include "plan/plan.h"

#include <algorithm>

#include "api/guard.h"
#include "core/record_format.h"
#include "plan/describe.h"
#include "plan/registry.h"
#include "plan/struct_size.h"

namespace kda {
namespace {

std::vector<Candidate> list_candidates(std::span<const KernelRow> rows, const Request& request,
                                       const Capabilities& capabilities, const Choice& choice, int operation) {
  std::vector<Candidate> candidates;
  for (const KernelRow& row : rows) {
    if (static_cast<int>(row.operation) != operation) continue;
    FixedText<> reason;
    const Status status = explain_candidate(row, request, capabilities, choice, &reason);
    candidates.push_back({&row, status, &row == choice.kernels[static_cast<size_t>(operation)], reason.c_str()});
  }
  // The order in which they were considered.
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.row->backend == b.row->backend && a.row->priority > b.row->priority;
  });
  return candidates;
}

Status choose(const kda_context* context, const kda_problem* problem, Request* request, Choice* choice,
              const ErrorSink& sink) {
  if (context == nullptr) return sink.fail(KDA_E_NULL, "context: NULL", "a context of kda_context_create");
  if (Status s = read_problem(problem, kernel_registry(), request, sink)) return s;
  return choose_kernels(kernel_registry(), *request, context->capabilities, choice, sink);
}

Status create_plan(const kda_context* context, const kda_problem* problem, kda_plan** out, const ErrorSink& sink) {
  if (out == nullptr) return sink.fail(KDA_E_NULL, "out: NULL", "where the plan goes");
  *out = nullptr;
  Request request;
  Choice choice;
  if (Status s = choose(context, problem, &request, &choice, sink)) return s;
  if (Status s = prepare_backend(choice.backend, context->capabilities)) {
    return sink.failf(s, "device %d: its driver refuses to load the kernels", "a working CUDA driver and free memory",
                      context->capabilities.gpu_device);
  }
  auto plan = std::make_unique<kda_plan>();
  plan->context = context;
  plan->problem = request.problem;
  plan->choice = choice;
  for (int op = 0; op < kOperationCount; ++op) {
    if (choice.kernels[static_cast<size_t>(op)] == nullptr) continue;
    plan->candidates[op] = list_candidates(kernel_registry(), request, context->capabilities, choice, op);
  }
  *out = plan.release();
  return KDA_OK;
}

size_t conv_slot_bytes(const Problem& p) {
  return p.conv_width == 0 ? 0 : static_cast<size_t>((p.conv_width - 1) * p.conv_channels() * size_of(p.conv_state));
}

kda_plan_info info_of(const kda_plan& plan) {
  const Problem& p = plan.problem;
  const RecordLayout records = record_layout(p);
  // What one more value head would add: the node's parts before their padding.
  const int64_t node_and_head =
      p.value_dim * 4 + p.key_dim * (p.verify_numerics == Numerics::fast ? 2 : 4) +
      (p.key_dim * size_of(p.io) + 4 + p.value_heads_per_head() - 1) / p.value_heads_per_head();
  kda_plan_info info{};
  info.backend = static_cast<int32_t>(plan.choice.backend);
  info.workspace_bytes = static_cast<size_t>(plan.choice.all_workspace_bytes());
  info.workspace_alignment = plan.choice.backend == Backend::cuda ? kCudaWorkspaceAlignment : kWorkspaceAlignment;
  info.record_row_bytes = static_cast<size_t>(records.row_bytes);
  info.record_node_bytes = static_cast<size_t>(node_and_head);
  info.conv_record_row_bytes =
      p.conv_width == 0 ? 0 : static_cast<size_t>(conv_record_layout(p, p.conv_channels()).row_bytes);
  info.record_alignment = static_cast<size_t>(kRecordAlignment);
  info.input_alignment = static_cast<size_t>(std::max<int64_t>(p.alignment, size_of(p.io)));
  info.state_slot_bytes = static_cast<size_t>(p.slot_elements() * size_of(p.state));
  info.conv_slot_bytes = conv_slot_bytes(p);
  return info;
}

}  // namespace
}  // namespace kda

extern "C" {

KDA_API kda_status kda_plan_create(const kda_context* context, const kda_problem* problem, kda_plan** out,
                                   kda_error* error) {
  return kda::guarded(error, [&](const kda::ErrorSink& sink) { return kda::create_plan(context, problem, out, sink); });
}

KDA_API void kda_plan_destroy(kda_plan* plan) { delete plan; }

KDA_API kda_status kda_can_run(const kda_context* context, const kda_problem* problem, kda_error* error) {
  return kda::guarded(error, [&](const kda::ErrorSink& sink) {
    kda::Request request;
    kda::Choice choice;
    return kda::choose(context, problem, &request, &choice, sink);
  });
}

KDA_API kda_status kda_plan_get_info(const kda_plan* plan, kda_plan_info* info) {
  return plan == nullptr ? KDA_E_NULL : kda::write_struct(kda::info_of(*plan), info);
}

KDA_API int32_t kda_plan_candidate_count(const kda_plan* plan, int32_t operation) {
  if (plan == nullptr || operation < 0 || operation >= kda::kOperationCount) return 0;
  return static_cast<int32_t>(plan->candidates[operation].size());
}

KDA_API kda_status kda_plan_get_candidate(const kda_plan* plan, int32_t operation, int32_t index, kda_candidate* out) {
  if (plan == nullptr || out == nullptr) return KDA_E_NULL;
  if (index < 0 || index >= kda_plan_candidate_count(plan, operation)) return KDA_E_NUMBER;
  const kda::Candidate& candidate = plan->candidates[operation][static_cast<size_t>(index)];
  kda_candidate value{};
  value.taken = candidate.taken ? 1 : 0;
  value.kernel = candidate.row->name;
  value.status = candidate.status;
  value.reason = candidate.reason.c_str();
  return kda::write_struct(value, out);
}

KDA_API kda_status kda_plan_describe(const kda_plan* plan, char* buffer, size_t capacity, size_t* needed) {
  return kda::guarded(nullptr, [&](const kda::ErrorSink&) {
    return plan == nullptr ? KDA_E_NULL : kda::copy_text(kda::describe_plan(*plan), buffer, capacity, needed);
  });
}

KDA_API size_t kda_plan_conv_record_row_bytes(const kda_plan* plan, int64_t channels) {
  if (plan == nullptr || channels < 1) return 0;
  return static_cast<size_t>(kda::conv_record_layout(plan->problem, channels).row_bytes);
}

}  // extern "C"
