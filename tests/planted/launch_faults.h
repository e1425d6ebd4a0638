// Faults planted between the planner and the kernels of every backend: a kernel that ignores or misreads one of its
// arguments is the same kernel called with that argument changed.
#pragma once

#include "core/kernel.h"
#include "core/record_format.h"
#include "planted/list_memory.h"

namespace planted {

#define KDA_LAUNCH_FAULTS(X)                                                                         \
  X(parents_ignored)     /* every draft is taken for a chain */                                      \
  X(record_rows_ignored) /* commit reads the row's own index */                                      \
  X(has_state_ignored)                                                                               \
  X(null_row_ignored) /* a negative slot is taken for slot 0 */                                      \
  X(null_slot0_ignored)                                                                              \
  X(single_root_ignored)                                                                             \
  X(dst_ignored)        /* the final state goes to the source slot */                                \
  X(tip_before)         /* commit stops at tip - 1 */                                                \
  X(tip_none_commits)   /* tip -1 commits node 0 */                                                  \
  X(snapshot_elsewhere) /* the state one position earlier */                                         \
  X(gate_of_first_token)                                                                             \
  X(beta_of_first_token)                                                                             \
  X(dt_bias_dropped)                                                                                 \
  X(A_log_of_next_parameter) /* the rate of another value head */                                    \
  X(query_head_zero)         /* every head reads query head 0 */                                     \
  X(norm_flag_flipped)                                                                               \
  X(scale_dropped)                                                                                   \
  X(lower_bound_fixed) /* -5 whatever the call says */                                               \
  X(slot_stride_compact)                                                                             \
  X(layout_swapped)                                                                                  \
  X(layers_ignored)        /* every layer is the first */                                            \
  X(pool_rounding_skipped) /* verify and commit keep fp32 between the nodes of a bf16 pool */        \
  X(rounded_as_bf16_pool)  /* verify and commit round an fp32 pool's states to bf16 between nodes */ \
  X(cu_seqlens_from_zero)  /* rows count from token 0 */                                             \
  X(pending_ignored)                                                                                 \
  X(move_in_list_order)                                                                              \
  X(conv_bias_dropped)                                                                               \
  X(conv_weight_of_next_tap) /* taps are shifted by one */

enum class LaunchFault {
  none,
#define KDA_FAULT(name) name,
  KDA_LAUNCH_FAULTS(KDA_FAULT)
#undef KDA_FAULT
};

LaunchFault active_launch_fault();

template <class Launch>
void misread(kda::Problem* p, Launch* l, Lists* lists) {
  const LaunchFault fault = active_launch_fault();
  const auto is = [fault](LaunchFault f) { return fault == f; };
  if (is(LaunchFault::null_slot0_ignored)) p->null_slot0 = false;
  if (is(LaunchFault::single_root_ignored)) p->single_root = false;
  if (is(LaunchFault::norm_flag_flipped)) p->qk_l2norm = !p->qk_l2norm;
  if (is(LaunchFault::layout_swapped))
    p->state_layout = p->state_layout == kda::StateLayout::vk ? kda::StateLayout::kv : kda::StateLayout::vk;
  if constexpr (requires { l->rows; }) {
    if (is(LaunchFault::has_state_ignored)) l->rows.has_state = {};
    if (is(LaunchFault::null_row_ignored))
      l->rows.slots = lists->changed(l->rows.slots, [](int64_t slot) { return slot < 0 ? 0 : slot; });
    if (is(LaunchFault::dst_ignored)) {
      l->rows.dst_slots = {};
      l->dst = l->state;
    }
    if (is(LaunchFault::cu_seqlens_from_zero) && l->rows.cu_seqlens.present()) {
      const int64_t first = Lists::read(l->rows.cu_seqlens)[0];
      l->rows.cu_seqlens = lists->changed(l->rows.cu_seqlens, [first](int64_t token) { return token - first; });
    }
  }
  if constexpr (requires { l->state.slot_stride; }) {
    if (is(LaunchFault::slot_stride_compact)) {
      const int64_t channels = p->conv_channels() * (p->conv_width - 1);
      l->state.slot_stride = std::is_same_v<decltype(l->state), kda::StatePool> ? p->slot_elements() : channels;
      if (l->dst.base == l->state.base) l->dst.slot_stride = l->state.slot_stride;
    }
    if (is(LaunchFault::layers_ignored)) l->state.layers = l->dst.layers = {};
  }
  if constexpr (requires { l->source; }) {
    if (is(LaunchFault::layers_ignored)) l->source.layers = l->destination.layers = {};
  }
  if constexpr (requires { l->draft; }) {
    if (is(LaunchFault::parents_ignored)) l->draft.parents = {};
    if (is(LaunchFault::pending_ignored)) l->pending = {};
  }
  if constexpr (requires { l->tips; }) {
    if (is(LaunchFault::record_rows_ignored)) l->record_rows = {};
    if (is(LaunchFault::tip_before))
      l->tips = lists->changed(l->tips, [](int64_t tip) { return tip > 0 ? tip - 1 : tip; });
    if (is(LaunchFault::tip_none_commits))
      l->tips = lists->changed(l->tips, [](int64_t tip) { return tip < 0 ? 0 : tip; });
  }
  if constexpr (requires { l->snapshots; }) {
    if (is(LaunchFault::snapshot_elsewhere))
      l->snapshots.positions = lists->changed(l->snapshots.positions, [](int64_t at) { return at > 0 ? at - 1 : at; });
  }
  if constexpr (requires { l->tokens; }) {
    if (is(LaunchFault::gate_of_first_token)) l->tokens.a.token_stride = 0;
    if (is(LaunchFault::beta_of_first_token)) l->tokens.b.token_stride = 0;
    if (is(LaunchFault::dt_bias_dropped)) l->tokens.dt_bias = {};
    if (is(LaunchFault::query_head_zero)) l->tokens.q.head_stride = 0;
    if (is(LaunchFault::scale_dropped)) l->tokens.scale = 1;
    if (is(LaunchFault::lower_bound_fixed)) l->tokens.lower_bound = -5;
    if (is(LaunchFault::A_log_of_next_parameter) && l->tokens.A_log.present() && p->value_heads > 1)
      l->tokens.A_log = l->tokens.dt_bias.present() ? l->tokens.dt_bias : l->tokens.A_log;
  }
  if constexpr (std::is_same_v<Launch, kda::VerifyLaunch> || std::is_same_v<Launch, kda::CommitLaunch>) {
    if (is(LaunchFault::pool_rounding_skipped)) p->state = kda::DType::fp32;
    if (is(LaunchFault::rounded_as_bf16_pool)) p->state = kda::DType::bf16;
  }
  if constexpr (requires { l->bias; }) {
    if (is(LaunchFault::conv_bias_dropped)) l->bias = nullptr;
    if (is(LaunchFault::conv_weight_of_next_tap) && l->weight_stride > p->conv_width)
      l->weight += size_of(l->weight_dtype);
  }
}

template <class Launch>
kda::Status call_with_fault(kda::KernelFunction<Launch> kernel, const kda::Problem& problem, const Launch& launch,
                            const kda::Execution& execution) {
  if (active_launch_fault() == LaunchFault::none) return kernel(problem, launch, execution);
  kda::Problem p = problem;
  Launch l = launch;
  Lists lists;
  misread(&p, &l, &lists);
  if constexpr (requires { l.source_slots; }) {
    if (active_launch_fault() == LaunchFault::move_in_list_order) {
      const std::vector<int64_t> from = Lists::read(launch.source_slots), to = Lists::read(launch.destination_slots);
      for (size_t i = 0; i < from.size(); ++i) {
        Lists one;
        l.source_slots = one.store({from[i]}, launch.source_slots);
        l.destination_slots = one.store({to[i]}, launch.destination_slots);
        if (const kda::Status status = kernel(p, l, execution)) return status;
      }
      return KDA_OK;
    }
  }
  return kernel(p, l, execution);
}

}  // namespace planted
