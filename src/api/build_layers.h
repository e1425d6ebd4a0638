// Commit and move, over states or conv windows alike, of one layer or many.
#pragma once

#include "api/build_rows.h"

namespace kda {

// What commit needs to know of its records once the pools are viewed.
struct RecordExpectation {
  int64_t row_bytes;
  RecordForm form;
};
Status expect_records(const Call& call, const StatePools& pools, RecordExpectation* expected);
Status expect_records(const Call& call, const ConvPools& pools, RecordExpectation* expected);

template <class Pools, class Launch>
Status build_commit_of(Call& call, const kda_commit_args& args, Pools& pools, Launch* launch) {
  using Pool = typename Pools::Pool;
  KDA_TRY(check_layer_count(call, args.layers, &launch->layers));
  const auto layers_of = [&](const kda_layer_addresses& addresses, const char* name) {
    return LayersArgument{launch->layers, &addresses, name};
  };
  Rows& rows = launch->rows;
  KDA_TRY(count_rows(call, args.tips, "tips", 0, &rows.count));
  KDA_TRY(view_list(call, args.tips, "tips", {"N", rows.count}, &launch->tips));
  KDA_TRY(view_row_lists(call, args.rows, &rows));
  KDA_TRY(view_row_pools(call, pools, args.rows, rows, layers_of(args.state_layers, "state_layers"),
                         layers_of(args.dst_layers, "dst_layers"), &launch->state, &launch->dst));
  KDA_TRY(view_list(call, args.record_rows, "record_rows", {"N", rows.count}, &launch->record_rows));
  KDA_TRY(view_snapshots(call, pools, args.snapshots, layers_of(args.snapshot_layers, "snapshot_layers"), launch->state,
                         &launch->snapshots));
  RecordExpectation expected{};
  KDA_TRY(expect_records(call, pools, &expected));
  KDA_TRY(view_records(call, args.records, expected.row_bytes, Access::read,
                       layers_of(args.record_layers, "record_layers"), &launch->records));
  KDA_TRY(call.check_overlaps());
  if (!call.lists_on_host()) return KDA_OK;

  KDA_TRY(check_slots(call, rows, launch->state.slots));
  const Replay replay{launch->records,     expected.form,         launch->tips,
                      launch->record_rows, call.memory_on_host(), launch->layers};
  KDA_TRY(check_tips(call, rows, replay, "tips", "record_rows"));
  const SlotLists<Pool> lists{
      .rows = rows, .state = launch->state, .dst = &launch->dst, .snapshots = &launch->snapshots, .replay = &replay};
  return check_lists(call, lists, pools.channels);
}

// A move is one simultaneous assignment: a destination may be a source within one pool. Between two pools that share
// memory the kernels could not keep that promise, so there no destination may be a source.
template <class Pools, class Launch>
Status build_move_of(Call& call, const kda_move_args& args, Pools& pools, Launch* launch) {
  KDA_TRY(check_layer_count(call, args.layers, &launch->layers));
  const LayersArgument source_layers{launch->layers, &args.source_layers, "source_layers"};
  const LayersArgument destination_layers{launch->layers, &args.destination_layers, "destination_layers"};
  KDA_TRY(pools.view(call, args.source, "source", kFloatTypes, source_layers, &launch->source));
  launch->destination = launch->source;
  if (args.destination != nullptr) {
    KDA_TRY(pools.view(call, args.destination, "destination", kFloatTypes, destination_layers, &launch->destination));
  }
  if (args.source_slots == nullptr || args.destination_slots == nullptr) {
    return call.fail(KDA_E_NULL, "source_slots or destination_slots: NULL", "two lists [M]");
  }
  KDA_TRY(view_list(call, args.source_slots, "source_slots", {"M", kAny}, &launch->source_slots));
  KDA_TRY(view_list(call, args.destination_slots, "destination_slots", {"M", launch->source_slots.count},
                    &launch->destination_slots));
  KDA_TRY(call.check_overlaps());
  if (!call.lists_on_host()) return KDA_OK;

  const Problem& p = call.problem;
  const int64_t entries = launch->source_slots.count;
  const auto is_skipped = [&](int64_t i) {
    return is_skipped_slot(p, launch->source_slots.at(i), launch->source, launch->source) ||
           is_skipped_slot(p, launch->destination_slots.at(i), launch->destination, launch->source);
  };
  const auto use = [&](const auto& pool, const IndexView& slots, int64_t i, const char* list) {
    return slot_use(p, pool, pools.channels, slots.at(i), i, i, list);
  };
  for (int64_t i = 0; i < entries; ++i) {
    if (is_skipped(i)) continue;
    const int64_t from = launch->source_slots.at(i), to = launch->destination_slots.at(i);
    if (from >= launch->source.slots) return fail_slot_range(call, "source_slots", i, from, launch->source.slots);
    if (to >= launch->destination.slots) {
      return fail_slot_range(call, "destination_slots", i, to, launch->destination.slots);
    }
  }
  const bool one_pool = same_pool(launch->source, launch->destination);
  const auto each_write = [&](const auto& visit) {
    for (int64_t i = 0; i < entries; ++i) {
      if (!is_skipped(i)) visit(use(launch->destination, launch->destination_slots, i, "destination_slots"));
    }
  };
  const auto each_read = [&](const auto& visit) {
    for (int64_t i = 0; !one_pool && i < entries; ++i) {
      if (!is_skipped(i)) visit(use(launch->source, launch->source_slots, i, "source_slots"));
    }
  };
  SlotUse first, second;
  const Conflict conflict = find_conflict(each_write, each_read, &first, &second);
  return conflict == Conflict::none ? KDA_OK : fail_conflict(call, conflict, first, second);
}

}  // namespace kda
