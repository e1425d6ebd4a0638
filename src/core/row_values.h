// The rules that decide which slots, records and windows a row of a call touches, read from host lists.
#pragma once

#include "core/launch.h"

namespace kda {

// Two views of the same pool. A table of layer addresses may lie in device memory and is never read here: pools named
// by tables are the same if the table is.
template <class Pool>
bool same_pool(const Pool& a, const Pool& b) {
  if (a.layers.table != nullptr || b.layers.table != nullptr) return a.layers.table == b.layers.table;
  return a.present() && b.present() && a.base == b.base;
}

// Null rule of an entry of a list of slots: negative, or slot 0 of the plan's own pool under null_slot0.
template <class Pool>
bool is_skipped_slot(const Problem& problem, int64_t slot, const Pool& pool, const Pool& own) {
  return slot < 0 || (slot == 0 && problem.null_slot0 && same_pool(pool, own));
}

inline bool is_null_row(const Problem& problem, const Rows& rows, int64_t row) {
  if (!rows.slots.present()) return false;
  const int64_t slot = rows.slots.at(row);
  return slot < 0 || (slot == 0 && problem.null_slot0);
}

inline int64_t row_begin(const Rows& rows, int64_t row) {
  return rows.cu_seqlens.present() ? rows.cu_seqlens.at(row) : row;
}
inline int64_t row_length(const Rows& rows, int64_t row) { return row_begin(rows, row + 1) - row_begin(rows, row); }

// The record row of a row: its entry, or its own index.
inline int64_t record_row_of(const IndexView& record_rows, int64_t row) {
  return record_rows.present() ? record_rows.at(row) : row;
}

// The accepted node of a commit, or -1 if there is nothing to apply.
inline int64_t applied_tip(const IndexView& tips, const IndexView& record_rows, int64_t row) {
  const int64_t tip = tips.at(row);
  return tip < 0 || record_row_of(record_rows, row) < 0 ? -1 : tip;
}

}  // namespace kda
