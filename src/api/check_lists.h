// Values of the lists of slots that a call stores to: ranges, snapshot positions, and that no slot is written twice or
// read by one row and written by another. Host lists only.
#pragma once

#include <cstdlib>

#include "api/check_rows.h"
#include "api/distinct.h"

namespace kda {

// The lists of one call, over state pools or conv pools.
template <class Pool>
struct SlotLists {
  const Rows& rows;
  const Pool& state;
  const Pool* dst = nullptr;  // null: final states are not stored (plain verify)
  const SnapshotList<Pool>* snapshots = nullptr;
  const Replay* replay = nullptr;         // commit and pending commit: what is applied
  const IndexView* node_slots = nullptr;  // verify
  const Pool* node_pool = nullptr;
  bool fast_positions = false;  // extend with fast numerics: multiples of 16 and the end
};

// Bytes from the first to the last element of a slot.
inline int64_t slot_elements(const Problem& problem, const StatePool&, int64_t) { return problem.slot_elements(); }
inline int64_t slot_elements(const Problem& problem, const ConvPool& pool, int64_t channels) {
  return (problem.conv_width - 2) * pool.window_stride + (channels - 1) * pool.channel_stride + 1;
}

// The memory of a slot. Where the slots of a pool are interleaved, equal places stand for equal slots.
template <class Pool>
SlotUse slot_use(const Problem& problem, const Pool& pool, int64_t channels, int64_t slot, int64_t row, int64_t entry,
                 const char* list) {
  const int64_t elements = slot_elements(problem, pool, channels);
  const bool apart = pool.slots <= 1 || std::abs(pool.slot_stride) >= elements;
  const auto begin = reinterpret_cast<uintptr_t>(pool.layer_base(0)) +
                     static_cast<uintptr_t>(slot * pool.slot_stride * size_of(pool.dtype));
  return {begin, begin + static_cast<uintptr_t>((apart ? elements : 1) * size_of(pool.dtype)), row, entry, slot, list};
}

Status fail_slot_range(const Call& call, const char* list, int64_t entry, int64_t slot, int64_t slots);
Status fail_conflict(const Call& call, Conflict conflict, const SlotUse& first, const SlotUse& second);
Status fail_snapshot(const Call& call, int64_t entry, const char* what, int64_t value, const char* supported);

template <class Pool>
class ListChecker {
 public:
  ListChecker(const Call& call, const SlotLists<Pool>& lists, int64_t channels)
      : call_(call), problem_(call.problem), lists_(lists), channels_(channels) {}

  Status check() const {
    KDA_TRY(check_dst());
    KDA_TRY(check_snapshots());
    KDA_TRY(check_node_slots());
    const auto writes = [this](const auto& visit) { this->each_write(visit); };
    const auto reads = [this](const auto& visit) { this->each_read(visit); };
    SlotUse first, second;
    const Conflict conflict = find_conflict(writes, reads, &first, &second);
    return conflict == Conflict::none ? KDA_OK : fail_conflict(call_, conflict, first, second);
  }

 private:
  bool is_null(int64_t row) const { return is_null_row(problem_, lists_.rows, row); }
  bool is_skipped(int64_t slot, const Pool& pool) const { return is_skipped_slot(problem_, slot, pool, lists_.state); }
  SlotUse use(const Pool& pool, int64_t slot, int64_t row, int64_t entry, const char* list) const {
    return slot_use(problem_, pool, channels_, slot, row, entry, list);
  }

  Status check_dst() const {
    const Rows& rows = lists_.rows;
    for (int64_t row = 0; rows.dst_slots.present() && lists_.dst != nullptr && row < rows.count; ++row) {
      const int64_t slot = rows.dst_slots.at(row);
      if (is_null(row) || slot < lists_.dst->slots) continue;
      return fail_slot_range(call_, "dst_slots", row, slot, lists_.dst->slots);
    }
    return KDA_OK;
  }

  bool is_skipped_snapshot(int64_t entry) const {
    const SnapshotList<Pool>& list = *lists_.snapshots;
    const int64_t row = list.rows.at(entry);
    return row < 0 || list.positions.at(entry) < 0 || is_skipped(list.slots.at(entry), list.pool) ||
           (row < lists_.rows.count && is_null(row));
  }

  Status check_snapshots() const {
    if (lists_.snapshots == nullptr) return KDA_OK;
    const SnapshotList<Pool>& list = *lists_.snapshots;
    for (int64_t entry = 0; entry < list.count(); ++entry) {
      if (is_skipped_snapshot(entry)) continue;
      const int64_t row = list.rows.at(entry), position = list.positions.at(entry), slot = list.slots.at(entry);
      if (row >= lists_.rows.count) return fail_snapshot(call_, entry, "row", row, "a row of the call");
      KDA_TRY(lists_.replay != nullptr ? check_node(entry, row, position) : check_position(entry, row, position));
      if (slot >= list.pool.slots) return fail_slot_range(call_, "snapshots.slots", entry, slot, list.pool.slots);
    }
    return KDA_OK;
  }

  Status check_position(int64_t entry, int64_t row, int64_t position) const {
    const int64_t length = row_length(lists_.rows, row);
    if (position > length) return fail_snapshot(call_, entry, "position", position, "0 to the row's length");
    if (!lists_.fast_positions || position == length || position % kFastSnapshotStep == 0) return KDA_OK;
    return fail_snapshot(call_, entry, "position", position, "a multiple of 16 or the row's length (fast numerics)");
  }

  Status check_node(int64_t entry, int64_t row, int64_t node) const {
    const bool applied = applied_tip(lists_.replay->tips, lists_.replay->record_rows, row) >= 0;
    if (applied && is_on_path(problem_, *lists_.replay, row, node)) return KDA_OK;
    return fail_snapshot(call_, entry, "node", node, "a node on the path to the row's tip");
  }

  Status check_node_slots() const {
    if (lists_.node_slots == nullptr || !lists_.node_slots->present()) return KDA_OK;
    for (int64_t row = 0; row < lists_.rows.count; ++row) {
      for (int64_t node = 0; !is_null(row) && node < row_length(lists_.rows, row); ++node) {
        const int64_t slot = lists_.node_slots->at(row, node);
        if (slot < lists_.node_pool->slots) continue;
        return fail_slot_range(call_, "node_slots", row * lists_.node_slots->columns + node, slot,
                               lists_.node_pool->slots);
      }
    }
    return KDA_OK;
  }

  // In place, an empty row and a row with nothing to commit leave their slot as it is.
  bool changes_in_place(int64_t row) const {
    if (lists_.replay != nullptr) {
      return applied_tip(lists_.replay->tips, lists_.replay->record_rows, row) >= 0;
    }
    return row_length(lists_.rows, row) > 0 || !lists_.rows.has_state.at(row);
  }

  template <class Visit>
  void each_write(const Visit& visit) const {
    const Rows& rows = lists_.rows;
    for (int64_t row = 0; lists_.dst != nullptr && row < rows.count; ++row) {
      if (is_null(row)) continue;
      if (rows.dst_slots.present()) {
        const int64_t slot = rows.dst_slots.at(row);
        if (!is_skipped(slot, *lists_.dst)) visit(use(*lists_.dst, slot, row, row, "dst_slots"));
      } else if (rows.slots.present() && changes_in_place(row)) {
        visit(use(lists_.state, rows.slots.at(row), row, row, "slots"));
      }
    }
    for (int64_t i = 0; lists_.snapshots != nullptr && i < lists_.snapshots->count(); ++i) {
      const SnapshotList<Pool>& list = *lists_.snapshots;
      if (!is_skipped_snapshot(i)) visit(use(list.pool, list.slots.at(i), list.rows.at(i), i, "snapshots.slots"));
    }
    if (lists_.node_slots == nullptr || !lists_.node_slots->present()) return;
    for (int64_t row = 0; row < rows.count; ++row) {
      for (int64_t node = 0; !is_null(row) && node < row_length(rows, row); ++node) {
        const int64_t slot = lists_.node_slots->at(row, node);
        if (is_skipped(slot, *lists_.node_pool)) continue;
        visit(use(*lists_.node_pool, slot, row, row * lists_.node_slots->columns + node, "node_slots"));
      }
    }
  }

  template <class Visit>
  void each_read(const Visit& visit) const {
    const Rows& rows = lists_.rows;
    for (int64_t row = 0; rows.slots.present() && row < rows.count; ++row) {
      if (is_null(row) || !rows.has_state.at(row)) continue;
      visit(use(lists_.state, rows.slots.at(row), row, row, "slots"));
    }
  }

  const Call& call_;
  const Problem& problem_;
  const SlotLists<Pool>& lists_;
  int64_t channels_;
};

// channels: C of a conv call; unused for state pools.
template <class Pool>
Status check_lists(const Call& call, const SlotLists<Pool>& lists, int64_t channels = 0) {
  return ListChecker<Pool>(call, lists, channels).check();
}

}  // namespace kda
