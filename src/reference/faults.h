// Faults that a test build plants in the reference kernels, to show that the tests catch them (tests/planted).
// In the library every planted(...) is constant false and leaves no code behind.
#pragma once

namespace kda::reference {

// X(name) for every fault; what each does:
//   chain_on_tree               verify takes the previous node for the parent
//   sibling_leak                a node starts from its parent's state after an older sibling changed it
//   stale_record_row            commit and pending read the row's own index instead of record_rows
//   pool_rounding_skipped       verify and commit keep fp32 between the nodes of a bf16 pool
//   extend_rounds_every_token   extend rounds to the pool's dtype after every token
//   out_after_pool_rounding     decode's output uses the rounded state
//   decay_after_delta           S (I - beta k k^T) first, decay afterwards
//   wrong_head_mapping          value head hv reads query head hv % H
//   gate_of_next_value_head     value head hv decays with the gate of its neighbour
//   gate_of_first_token         every token of a row decays with the row's first gate
//   beta_of_first_token
//   snapshot_one_late           the state after position + 1 tokens
//   commit_before_tip           commit stops at the tip's parent
//   commit_tip_minus_one_stores tip -1 with has_state 0 stores zeros in place
//   has_state_ignored
//   null_row_ignored            a negative slot is taken for slot 0
//   null_slot0_ignored
//   null_out_not_written
//   slot_stride_ignored         slots are taken for compact
//   token_stride_ignored        q, k, v are taken for compact
//   layout_ignored              kv pools are taken for vk
//   cu_seqlens_start_ignored    rows count from token 0
//   empty_row_clears            an empty row stores zeros
//   dst_ignored                 the final state goes to the source slot
//   layer_stride_ignored
//   move_in_list_order          move is not a simultaneous assignment
//   single_root_ignored
//   bounded_as_clamp            bounded gate: max(lower_bound, -softplus(x))
//   l2norm_without_epsilon
//   dt_bias_dropped
//   pending_not_applied
//   record_header_unchecked
//   conv_window_off_by_one
//   conv_chain_on_tree
//   conv_bias_dropped
//   conv_layout_ignored
//   conv_window_not_shifted     a row shorter than the window loses the older inputs
#define KDA_REFERENCE_FAULTS(X)  \
  X(chain_on_tree)               \
  X(sibling_leak)                \
  X(stale_record_row)            \
  X(pool_rounding_skipped)       \
  X(extend_rounds_every_token)   \
  X(out_after_pool_rounding)     \
  X(decay_after_delta)           \
  X(wrong_head_mapping)          \
  X(gate_of_next_value_head)     \
  X(gate_of_first_token)         \
  X(beta_of_first_token)         \
  X(snapshot_one_late)           \
  X(commit_before_tip)           \
  X(commit_tip_minus_one_stores) \
  X(has_state_ignored)           \
  X(null_row_ignored)            \
  X(null_slot0_ignored)          \
  X(null_out_not_written)        \
  X(slot_stride_ignored)         \
  X(token_stride_ignored)        \
  X(layout_ignored)              \
  X(cu_seqlens_start_ignored)    \
  X(empty_row_clears)            \
  X(dst_ignored)                 \
  X(layer_stride_ignored)        \
  X(move_in_list_order)          \
  X(single_root_ignored)         \
  X(bounded_as_clamp)            \
  X(l2norm_without_epsilon)      \
  X(dt_bias_dropped)             \
  X(pending_not_applied)         \
  X(record_header_unchecked)     \
  X(conv_window_off_by_one)      \
  X(conv_chain_on_tree)          \
  X(conv_bias_dropped)           \
  X(conv_layout_ignored)         \
  X(conv_window_not_shifted)

enum class Fault {
  none,
#define KDA_FAULT(name) name,
  KDA_REFERENCE_FAULTS(KDA_FAULT)
#undef KDA_FAULT
};

#ifdef KDA_PLANTED_FAULTS
extern Fault active_fault;
inline bool planted(Fault fault) { return active_fault == fault; }
#else
constexpr bool planted(Fault) { return false; }
#endif

}  // namespace kda::reference
