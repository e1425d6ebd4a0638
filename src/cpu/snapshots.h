// Walking a snapshot list.
#pragma once

#include <limits>

#include "cpu/rows.h"

namespace kda::cpu {

// body(slot) for every entry of `row` at `position`. Negative entries, slot 0 of the own pool under null_slot0, and
// slots beyond the pool are skipped.
template <class Pool, class Body>
void for_snapshots(const Problem& problem, const SnapshotList<Pool>& list, const Pool& own, int64_t row,
                   int64_t position, const Body& body) {
  for (int64_t i = 0; i < list.count(); ++i) {
    if (list.rows.at(i) != row || list.positions.at(i) != position) continue;
    const int64_t slot = list.slots.at(i);
    if (!skipped_slot(problem, slot, list.pool, own)) body(slot);
  }
}

constexpr int64_t kNoSnapshot = std::numeric_limits<int64_t>::max();

// The first position >= `from` at which `row` has an entry, or kNoSnapshot.
template <class Pool>
int64_t next_snapshot(const SnapshotList<Pool>& list, int64_t row, int64_t from) {
  int64_t next = kNoSnapshot;
  for (int64_t i = 0; i < list.count(); ++i) {
    const int64_t position = list.positions.at(i);
    if (list.rows.at(i) == row && position >= from && position < next) next = position;
  }
  return next;
}

}  // namespace kda::cpu
