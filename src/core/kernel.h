// What a kernel is to the rest of the library: a registry row. Rows expand from src/<backend>/<backend>_kernels.def,
// whose lines are
//   KDA_KERNEL(cpu_decode_exact, decode, .needs = {.numerics = bit(Numerics::exact)}, .priority = 1, .summary = "...")
//   KDA_WORKSPACE(cpu_extend_workspace)      declares int64_t cpu_extend_workspace(const Problem&)
// The first two arguments are the function's name, which is also the kernel's, and its Operation; then come named
// fields of KernelRow in their order. plan/registry.h declares the functions (namespace kda) from the same lines.
#pragma once

#include <type_traits>
#include <variant>

#include "core/launch.h"

namespace kda {

template <class Launch>
using KernelFunction = Status (*)(const Problem&, const Launch&, const Execution&);

using AnyKernel = std::variant<KernelFunction<ExtendLaunch>, KernelFunction<DecodeLaunch>, KernelFunction<VerifyLaunch>,
                               KernelFunction<CommitLaunch>, KernelFunction<MoveLaunch>, KernelFunction<ConvLaunch>,
                               KernelFunction<ConvCommitLaunch>, KernelFunction<ConvMoveLaunch>>;

// The launch arguments of each operation.
template <Operation>
struct LaunchOfOperation;
template <>
struct LaunchOfOperation<Operation::extend> : std::type_identity<ExtendLaunch> {};
template <>
struct LaunchOfOperation<Operation::decode> : std::type_identity<DecodeLaunch> {};
template <>
struct LaunchOfOperation<Operation::verify> : std::type_identity<VerifyLaunch> {};
template <>
struct LaunchOfOperation<Operation::verify_pending> : std::type_identity<VerifyLaunch> {};
template <>
struct LaunchOfOperation<Operation::commit> : std::type_identity<CommitLaunch> {};
template <>
struct LaunchOfOperation<Operation::move> : std::type_identity<MoveLaunch> {};
template <>
struct LaunchOfOperation<Operation::conv_extend> : std::type_identity<ConvLaunch> {};
template <>
struct LaunchOfOperation<Operation::conv_decode> : std::type_identity<ConvLaunch> {};
template <>
struct LaunchOfOperation<Operation::conv_verify> : std::type_identity<ConvLaunch> {};
template <>
struct LaunchOfOperation<Operation::conv_verify_pending> : std::type_identity<ConvLaunch> {};
template <>
struct LaunchOfOperation<Operation::conv_commit> : std::type_identity<ConvCommitLaunch> {};
template <>
struct LaunchOfOperation<Operation::conv_move> : std::type_identity<ConvMoveLaunch> {};
template <Operation op>
using LaunchOf = typename LaunchOfOperation<op>::type;

using WorkspaceFunction = int64_t (*)(const Problem&);

template <class E>
constexpr uint32_t bit(E e) {
  return 1u << static_cast<unsigned>(e);
}

// What a kernel can serve; the planner reports the first need that a problem does not meet. All masks default to "any".
struct Needs {
  uint32_t io_dtypes = 7, state_dtypes = 3;                  // bit(DType)
  uint32_t gates = 7, betas = 7;                             // bit(Gate), bit(Beta)
  uint32_t state_layouts = 3;                                // bit(StateLayout)
  uint32_t numerics = 3;                                     // bit(Numerics) of the operation's numerics
  int min_dim = 1, max_dim = kMaxHeadDim, dim_multiple = 1;  // K and V
  int equal_dims = 0;                                        // if not 0: K == V == this
  bool l2norm_only = false;
  int min_gpu = 0, max_gpu = 0;    // compute capability times 10 (90 = Hopper), 0 = no bound
  int max_nodes = kMaxDraftNodes;  // largest draft of a row
  int min_row_tokens = 0;          // max_tokens per max_rows: a kernel for long rows leaves short ones to others
};

struct KernelRow {
  const char* name;  // kda naming grammar: <backend or smNN>_<operation>[_variant]
  Backend backend;
  Operation operation;
  AnyKernel run;
  Needs needs;
  int priority = 0;                       // higher is tried first
  WorkspaceFunction workspace = nullptr;  // bytes for this problem; null = 0
  const char* summary = "";               // one phrase for `kda info`

  bool is_built() const {
    return std::visit([](auto function) { return function != nullptr; }, run);
  }
};

}  // namespace kda
