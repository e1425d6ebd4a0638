// Parents of a row's draft.
#pragma once

#include "cpu/records.h"
#include "cpu/rows.h"

namespace kda::cpu {

// parents[0..row.length()): -1 = the committed state.
inline void read_parents(const Problem& problem, const Draft& draft, const Row& row, int16_t* parents) {
  for (int64_t node = 0; node < row.length(); ++node) {
    int64_t parent = node - 1;
    if (problem.single_root && node == 0) {
      parent = -1;
    } else if (draft.parents.present()) {
      parent = draft.by_row ? draft.parents.at(row.index, node) : draft.parents.at(row.begin + node);
    }
    parents[node] = static_cast<int16_t>(parent < 0 ? -1 : parent);
  }
}

// Reads the path of a pending commit, empty where nothing is pending. Returns 0 or the KDA_DEVICE_* bit.
template <class Layout>
uint32_t read_pending(const PendingCommit& pending, const RecordBuffer& records, uint32_t magic, const Layout& layout,
                      int max_nodes, int64_t row, const std::byte*& record, RecordPath& path) {
  path.length = 0;
  if (!pending.present()) return 0;
  const int64_t tip = pending.tips.at(row);
  const int64_t record_row = pending.record_rows.present() ? pending.record_rows.at(row) : row;
  if (tip < 0 || record_row < 0) return 0;
  record = records.base + record_row * records.row_stride;
  return read_record_path(record, magic, layout, max_nodes, tip, path);
}

}  // namespace kda::cpu
