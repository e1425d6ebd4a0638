// The calls of the ABI: arguments are checked and viewed, then the plan's kernel runs.
#include "api/build.h"
#include "api/guard.h"
#include "capture/capture.h"
#include "plan/names.h"
#include "plan/struct_size.h"
#if KDA_WITH_CUDA
#include "cuda/host_lists.h"
#endif

namespace kda {
namespace {

Status read_execution(const Call& call, const kda_call* caller, Execution* execution) {
  kda_call resources{};
  if (caller != nullptr) KDA_TRY(read_struct(caller, "kda_call", &resources, call.sink));
  const Choice& choice = call.plan.choice;
  const bool brings_lists = !call.memory_on_host() && call.has_host_list();
  const auto needed = static_cast<size_t>(brings_lists ? choice.all_workspace_bytes() : choice.workspace_bytes);
  const size_t alignment = choice.backend == Backend::cuda ? kCudaWorkspaceAlignment : kWorkspaceAlignment;
  const auto address = reinterpret_cast<uintptr_t>(resources.workspace);
  if (needed > 0 && (address == 0 || resources.workspace_bytes < needed || address % alignment != 0)) {
    return call.fail(KDA_E_WORKSPACE,
                     FixedText<>("workspace: %zu bytes at %p", resources.workspace_bytes, resources.workspace),
                     FixedText<>("%zu bytes at a multiple of %zu", needed, alignment));
  }
  *execution = {.threads = call.plan.context->threads.get(),
                .cpu_target = call.plan.context->cpu_target,
                .stream = resources.stream,
                .workspace = static_cast<std::byte*>(resources.workspace),
                .device_status = resources.device_status};
  return KDA_OK;
}

// Index lists in host memory go to where the kernel reads.
template <class Launch>
Status move_lists(const Call& call, const Execution& execution, Launch* launch) {
#if KDA_WITH_CUDA
  if (call.memory_on_host() || !call.has_host_list()) return KDA_OK;
  const Choice& choice = call.plan.choice;
  HostListStager stager(call.problem, execution.workspace + choice.list_offset(), choice.list_bytes, execution.stream);
  const Status status = stage_host_lists(launch, stager);
  if (status != KDA_E_PLAN_LIMIT) return status;
  return call.fail(
      status, FixedText<>("%lld bytes of index lists in host memory", static_cast<long long>(stager.bytes_needed())),
      FixedText<>("%lld bytes, the room of the plan's workspace for them; lists in device memory need none",
                  static_cast<long long>(choice.list_bytes)));
#else
  (void)call, (void)execution, (void)launch;
  return KDA_OK;
#endif
}

// One call: `build` fills the launch from the arguments, and the kernel that the plan chose for the operation runs.
template <class Launch, class Args, class OperationOf, class Build>
Status run_call(const kda_plan* plan, const Args* caller, const char* args_name, const kda_call* resources,
                kda_error* error, const OperationOf& operation_of, const Build& build) {
  return guarded(error, [&](const ErrorSink& sink) -> Status {
    if (plan == nullptr) return sink.fail(KDA_E_NULL, "plan: NULL", "a plan of kda_plan_create");
    Args args;
    KDA_TRY(read_struct(caller, args_name, &args, sink));
    const Operation operation = operation_of(args);
    const KernelRow* kernel = plan->choice.kernels[static_cast<size_t>(operation)];
    if (kernel == nullptr) {
      return sink.failf(KDA_E_NOT_PLANNED, "%s", "an operation of kda_problem.operations", name_of(operation));
    }
    if (plan->choice.backend == Backend::cuda && plan->context->capabilities.gpu_is_described) {
      return sink.fail(KDA_E_BACKEND, "a call of a plan for a described GPU", "calls of plans whose GPU is here");
    }
    Call call(*plan, sink);
    Launch launch;
    KDA_TRY(build(call, operation, args, &launch));
    Execution execution;
    KDA_TRY(read_execution(call, resources, &execution));
    const std::unique_ptr<CallCapture> capture = begin_capture(*plan, operation, launch);
    KDA_TRY(move_lists(call, execution, &launch));
    const Status status = std::get<KernelFunction<Launch>>(kernel->run)(plan->problem, launch, execution);
    if (status != KDA_OK) return sink.failf(status, "kernel %s", "what docs/errors.md says", kernel->name);
    if (capture != nullptr) capture->finish();
    return KDA_OK;
  });
}

template <class Launch, class Args>
Status run_call(const kda_plan* plan, const Args* caller, const char* args_name, const kda_call* resources,
                kda_error* error, Operation operation, Status (*build)(Call&, const Args&, Launch*)) {
  return run_call<Launch>(
      plan, caller, args_name, resources, error, [&](const Args&) { return operation; },
      [&](Call& call, Operation, const Args& args, Launch* launch) { return build(call, args, launch); });
}

Status run_conv(const kda_plan* plan, const kda_conv_args* caller, const kda_call* resources, kda_error* error,
                Operation operation) {
  const auto operation_of = [&](const kda_conv_args& args) {
    const bool pending = operation == Operation::conv_verify && args.pending_tips != nullptr;
    return pending ? Operation::conv_verify_pending : operation;
  };
  return run_call<ConvLaunch>(plan, caller, "kda_conv_args", resources, error, operation_of, &build_conv);
}

}  // namespace
}  // namespace kda

using kda::Operation;

extern "C" {

KDA_API kda_status kda_extend(const kda_plan* plan, const kda_extend_args* args, const kda_call* call,
                              kda_error* error) {
  return kda::run_call(plan, args, "kda_extend_args", call, error, Operation::extend, &kda::build_extend);
}

KDA_API kda_status kda_decode(const kda_plan* plan, const kda_decode_args* args, const kda_call* call,
                              kda_error* error) {
  return kda::run_call(plan, args, "kda_decode_args", call, error, Operation::decode, &kda::build_decode);
}

KDA_API kda_status kda_verify(const kda_plan* plan, const kda_verify_args* args, const kda_call* call,
                              kda_error* error) {
  return kda::run_call<kda::VerifyLaunch>(
      plan, args, "kda_verify_args", call, error,
      [](const kda_verify_args& a) {
        return a.pending_tips != nullptr ? Operation::verify_pending : Operation::verify;
      },
      [](kda::Call& checks, Operation, const kda_verify_args& a, kda::VerifyLaunch* launch) {
        return kda::build_verify(checks, a, launch);
      });
}

KDA_API kda_status kda_commit(const kda_plan* plan, const kda_commit_args* args, const kda_call* call,
                              kda_error* error) {
  return kda::run_call(plan, args, "kda_commit_args", call, error, Operation::commit, &kda::build_commit);
}

KDA_API kda_status kda_move(const kda_plan* plan, const kda_move_args* args, const kda_call* call, kda_error* error) {
  return kda::run_call(plan, args, "kda_move_args", call, error, Operation::move, &kda::build_move);
}

KDA_API kda_status kda_conv_extend(const kda_plan* plan, const kda_conv_args* args, const kda_call* call,
                                   kda_error* error) {
  return kda::run_conv(plan, args, call, error, Operation::conv_extend);
}

KDA_API kda_status kda_conv_decode(const kda_plan* plan, const kda_conv_args* args, const kda_call* call,
                                   kda_error* error) {
  return kda::run_conv(plan, args, call, error, Operation::conv_decode);
}

KDA_API kda_status kda_conv_verify(const kda_plan* plan, const kda_conv_args* args, const kda_call* call,
                                   kda_error* error) {
  return kda::run_conv(plan, args, call, error, Operation::conv_verify);
}

KDA_API kda_status kda_conv_commit(const kda_plan* plan, const kda_commit_args* args, const kda_call* call,
                                   kda_error* error) {
  return kda::run_call(plan, args, "kda_commit_args", call, error, Operation::conv_commit, &kda::build_conv_commit);
}

KDA_API kda_status kda_conv_move(const kda_plan* plan, const kda_move_args* args, const kda_call* call,
                                 kda_error* error) {
  return kda::run_call(plan, args, "kda_move_args", call, error, Operation::conv_move, &kda::build_conv_move);
}

}  // extern "C"
