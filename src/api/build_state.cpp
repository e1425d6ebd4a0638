// Extend, decode, verify, commit and move of states.
#include "api/build.h"
#include "api/build_layers.h"

namespace kda {
namespace {

constexpr LayersArgument kOneLayer{};

Status check_not_fused(const Call& call, const kda_fused_layer& fused) {
  const bool set = fused.conv_weight != nullptr || fused.conv_bias != nullptr || fused.conv_state != nullptr ||
                   fused.norm_weight != nullptr || fused.output_gate != nullptr;
  return set ? call.fail(KDA_E_RESERVED, "a field of fused", "fused: all NULL") : KDA_OK;
}

// Token tensors, the rows that cut them, and their pools. Without cu_seqlens (decode) token n is row n.
Status build_token_rows(Call& call, const kda_tokens& tokens, const kda_rows& from, int64_t most_per_row,
                        bool needs_cu_seqlens, TokenInputs* inputs, Rows* rows, StatePools& pools, StatePool* state,
                        StatePool* dst) {
  KDA_TRY(view_tokens(call, tokens, inputs, &rows->tokens));
  if (from.cu_seqlens != nullptr || needs_cu_seqlens) {
    KDA_TRY(count_rows(call, from.cu_seqlens, "cu_seqlens", 1, &rows->count));
    KDA_TRY(view_list(call, from.cu_seqlens, "cu_seqlens", {"N+1", rows->count + 1}, &rows->cu_seqlens));
  } else {
    rows->count = rows->tokens;
    KDA_TRY(check_row_count(call, rows->count));
  }
  KDA_TRY(view_row_lists(call, from, rows));
  KDA_TRY(view_row_pools(call, pools, from, *rows, kOneLayer, kOneLayer, state, dst));
  KDA_TRY(check_cu_seqlens(call, *rows, most_per_row));
  return check_slots(call, *rows, state->slots);
}

Status check_node_count(const Call& call, const Rows& rows, const char* name, int64_t columns) {
  for (int64_t row = 0; call.lists_on_host() && row < rows.count; ++row) {
    if (is_null_row(call.problem, rows, row) || row_length(rows, row) <= columns) continue;
    return call.fail(KDA_E_SHAPE,
                     FixedText<>("%s: D = %lld with a row of %lld nodes", name, static_cast<long long>(columns),
                                 static_cast<long long>(row_length(rows, row))),
                     FixedText<>("%s: D at least the longest row", name));
  }
  return KDA_OK;
}

Status view_node_stores(Call& call, const kda_verify_args& args, StatePools& pools, VerifyLaunch* launch) {
  KDA_TRY(view_node_states(call, args.node_states, launch));
  if (args.node_states != nullptr) {
    KDA_TRY(check_node_count(call, launch->rows, "node_states", launch->node_states_nodes));
  }
  if (args.node_slots == nullptr) {
    return args.node_pool == nullptr ? KDA_OK
                                     : call.fail(KDA_E_COMBINATION, "node_pool without node_slots", "both, or neither");
  }
  KDA_TRY(view_table(call, args.node_slots, "node_slots", {"N", launch->rows.count}, {"D", kAny}, &launch->node_slots));
  KDA_TRY(check_node_count(call, launch->rows, "node_slots", launch->node_slots.columns));
  if (args.node_pool != nullptr) {
    return pools.view(call, args.node_pool, "node_pool", state_destination_types(), kOneLayer, &launch->node_pool);
  }
  launch->node_pool = launch->state;
  return launch->state.present()
             ? KDA_OK
             : call.fail(KDA_E_NULL, "node_pool: NULL, and the call has no state pool", "a pool for node_slots");
}

}  // namespace

Status build_extend(Call& call, const kda_extend_args& args, ExtendLaunch* launch) {
  StatePools pools;
  KDA_TRY(build_token_rows(call, args.tokens, args.rows, INT64_MAX, true, &launch->tokens, &launch->rows, pools,
                           &launch->state, &launch->dst));
  KDA_TRY(view_snapshots(call, pools, args.snapshots, kOneLayer, launch->state, &launch->snapshots));
  KDA_TRY(call.check_overlaps());
  if (!call.lists_on_host()) return KDA_OK;
  return check_lists(call, SlotLists<StatePool>{.rows = launch->rows,
                                                .state = launch->state,
                                                .dst = &launch->dst,
                                                .snapshots = &launch->snapshots,
                                                .fast_positions = call.problem.extend_numerics == Numerics::fast});
}

Status build_decode(Call& call, const kda_decode_args& args, DecodeLaunch* launch) {
  StatePools pools;
  KDA_TRY(check_not_fused(call, args.fused));
  KDA_TRY(build_token_rows(call, args.tokens, args.rows, 1, false, &launch->tokens, &launch->rows, pools,
                           &launch->state, &launch->dst));
  KDA_TRY(call.check_overlaps());
  if (!call.lists_on_host()) return KDA_OK;
  return check_lists(call, SlotLists<StatePool>{.rows = launch->rows, .state = launch->state, .dst = &launch->dst});
}

Status build_verify(Call& call, const kda_verify_args& args, VerifyLaunch* launch) {
  StatePools pools;
  const bool pending = args.pending_tips != nullptr;
  KDA_TRY(check_not_fused(call, args.fused));
  if (!pending &&
      (args.rows.dst_slots != nullptr || args.rows.dst_state != nullptr || args.pending_snapshots.rows != nullptr)) {
    return call.fail(KDA_E_COMBINATION, "dst_slots, dst_state or pending_snapshots without pending_tips",
                     "destinations only with a pending commit: plain verify writes no pool");
  }
  KDA_TRY(build_token_rows(call, args.tokens, args.rows, call.problem.max_nodes, true, &launch->tokens, &launch->rows,
                           pools, &launch->state, &launch->dst));
  KDA_TRY(view_draft(call, args.parents, launch->rows, &launch->draft));
  KDA_TRY(view_list(call, args.record_rows, "record_rows", {"N", launch->rows.count}, &launch->record_rows));
  if (args.records != nullptr) {
    KDA_TRY(view_records(call, args.records, record_layout(call.problem).row_bytes, Access::write, kOneLayer,
                         &launch->records));
  }
  KDA_TRY(view_node_stores(call, args, pools, launch));
  KDA_TRY(
      view_pending(call, args.pending_tips, args.pending_record_rows, args.records, launch->rows, &launch->pending));
  KDA_TRY(view_snapshots(call, pools, args.pending_snapshots, kOneLayer, launch->state, &launch->pending_snapshots));
  KDA_TRY(call.check_overlaps());
  if (!call.lists_on_host()) return KDA_OK;

  KDA_TRY(check_parents(call, launch->rows, launch->draft));
  if (launch->records.present()) {
    KDA_TRY(check_record_rows(call, launch->rows, launch->record_rows, launch->records.rows, launch->pending));
  }
  if (launch->node_states != nullptr) {
    KDA_TRY(check_record_rows(call, launch->rows, launch->record_rows, launch->node_states_rows, PendingCommit{}));
  }
  const Replay replay{launch->records, record_form(call.problem), launch->pending.tips, launch->pending.record_rows,
                      call.memory_on_host()};
  if (pending && launch->pending.present()) {
    KDA_TRY(check_tips(call, launch->rows, replay, "pending_tips", "pending_record_rows"));
  }
  return check_lists(call, SlotLists<StatePool>{.rows = launch->rows,
                                                .state = launch->state,
                                                .dst = pending ? &launch->dst : nullptr,
                                                .snapshots = &launch->pending_snapshots,
                                                .replay = pending ? &replay : nullptr,
                                                .node_slots = &launch->node_slots,
                                                .node_pool = &launch->node_pool});
}

Status expect_records(const Call& call, const StatePools&, RecordExpectation* expected) {
  *expected = {record_layout(call.problem).row_bytes, record_form(call.problem)};
  return KDA_OK;
}

Status build_commit(Call& call, const kda_commit_args& args, CommitLaunch* launch) {
  StatePools pools;
  return build_commit_of(call, args, pools, launch);
}

Status build_move(Call& call, const kda_move_args& args, MoveLaunch* launch) {
  StatePools pools;
  return build_move_of(call, args, pools, launch);
}

}  // namespace kda
