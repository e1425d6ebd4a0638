// The parts that several operations share: rows with their pools, snapshot lists, drafts, pending commits.
#pragma once

#include "api/check_lists.h"
#include "api/views.h"

namespace kda {

// How pools of one kind are viewed.
struct StatePools {
  using Pool = StatePool;
  static constexpr int64_t channels = 0;
  Status view(Call& call, const DLTensor* from, const char* name, uint32_t types, const LayersArgument& layers,
              StatePool* to) {
    return view_pool(call, from, name, types, layers, to);
  }
  static uint32_t own_type(const Problem& problem) { return type_bit(problem.state); }
  static uint32_t destination_types(const Problem&) { return state_destination_types(); }
};
struct ConvPools {
  using Pool = ConvPool;
  int64_t channels = kAny;  // of the call; read from its first tensor
  Status view(Call& call, const DLTensor* from, const char* name, uint32_t types, const LayersArgument& layers,
              ConvPool* to) {
    return view_pool(call, from, name, types, layers, &channels, to);
  }
  static uint32_t own_type(const Problem& problem) { return type_bit(problem.conv_state); }
  static uint32_t destination_types(const Problem& problem) { return conv_destination_types(problem); }
};

// N of the call, from the list that carries it: cu_seqlens has N+1 entries, any other list N.
Status count_rows(const Call& call, const DLTensor* list, const char* name, int64_t extra, int64_t* rows);

// Of a decode whose tokens are its rows.
Status check_row_count(const Call& call, int64_t rows);

// slots, has_state, dst_slots of `rows->count` rows.
Status view_row_lists(Call& call, const kda_rows& from, Rows* rows);

Status check_layer_count(const Call& call, int32_t asked, int* layers);

// Draft parents, by row [N, D] or packed [T].
Status view_draft(Call& call, const DLTensor* parents, const Rows& rows, Draft* draft);

Status view_pending(Call& call, const DLTensor* tips, const DLTensor* record_rows, const DLTensor* records,
                    const Rows& rows, PendingCommit* pending);

// state and dst of the rows. Without slots and dst_slots no pool is needed.
template <class Pools>
Status view_row_pools(Call& call, Pools& pools, const kda_rows& from, const Rows& rows,
                      const LayersArgument& state_layers, const LayersArgument& dst_layers, typename Pools::Pool* state,
                      typename Pools::Pool* dst) {
  const bool needs_state = rows.slots.present() || (rows.dst_slots.present() && from.dst_state == nullptr);
  if (from.state != nullptr || needs_state) {
    KDA_TRY(pools.view(call, from.state, "state", Pools::own_type(call.problem), state_layers, state));
  }
  *dst = *state;
  if (from.dst_state == nullptr) return KDA_OK;
  if (!rows.dst_slots.present()) {
    return call.fail(KDA_E_COMBINATION, "dst_state without dst_slots", "both, or neither");
  }
  KDA_TRY(pools.view(call, from.dst_state, "dst_state", Pools::destination_types(call.problem), dst_layers, dst));
  if (same_pool(*state, *dst) && (state->dtype != dst->dtype || state->slot_stride != dst->slot_stride)) {
    return call.fail(KDA_E_COMBINATION, "dst_state starts where state starts, with another dtype or slot stride",
                     "dst_state as state, or with memory of its own");
  }
  return KDA_OK;
}

template <class Pools>
Status view_snapshots(Call& call, Pools& pools, const kda_snapshots& from, const LayersArgument& layers,
                      const typename Pools::Pool& state, SnapshotList<typename Pools::Pool>* to) {
  if (from.rows == nullptr && from.positions == nullptr && from.slots == nullptr) return KDA_OK;
  if (from.rows == nullptr || from.positions == nullptr || from.slots == nullptr) {
    return call.fail(KDA_E_COMBINATION, "snapshots: some of rows, positions and slots", "all three, or none");
  }
  KDA_TRY(view_list(call, from.rows, "snapshots.rows", {"S", kAny}, &to->rows));
  const Dim entries{"S", to->rows.count};
  KDA_TRY(view_list(call, from.positions, "snapshots.positions", entries, &to->positions));
  KDA_TRY(view_list(call, from.slots, "snapshots.slots", entries, &to->slots));
  if (entries.size > call.problem.max_snapshots) {
    return call.fail(KDA_E_PLAN_LIMIT, FixedText<>("%lld snapshots", static_cast<long long>(entries.size)),
                     FixedText<>("max_snapshots = %d", call.problem.max_snapshots));
  }
  if (from.pool != nullptr) return pools.view(call, from.pool, "snapshots.pool", kFloatTypes, layers, &to->pool);
  if (!state.present()) {
    return call.fail(KDA_E_NULL, "snapshots.pool: NULL, and the call has no state pool", "a pool for the snapshots");
  }
  to->pool = state;
  return KDA_OK;
}

}  // namespace kda
