// Record rows as core/record_format.h lays them out: what verify writes and commit repeats.
#pragma once

#include "core/record_format.h"
#include "reference/pools.h"
#include "reference/recurrence.h"

namespace kda::reference {

// Nodes of a path from its root to its tip.
struct Path {
  int count = 0;
  int nodes[kMaxDraftNodes];
};

inline int64_t record_row_of(const IndexView& record_rows, int64_t row) {
  return record_rows.present() ? record_rows.at(row) : row;
}

// The record row that a commit reads.
inline int64_t committed_record_row_of(const IndexView& record_rows, int64_t row) {
  return planted(Fault::stale_record_row) ? row : record_row_of(record_rows, row);
}

inline void set_device_status(const Execution& execution, uint32_t bit) {
  if (execution.device_status != nullptr) *execution.device_status |= bit;
}

// The parent of a draft's node, -1 = the committed state.
inline int64_t parent_of(const Problem& problem, const Draft& draft, int64_t begin, int64_t row, int64_t node) {
  if (problem.single_root && node == 0 && !planted(Fault::single_root_ignored)) return -1;
  if (!draft.parents.present() || planted(Fault::chain_on_tree)) return node - 1;
  return draft.by_row ? draft.parents.at(row, node) : draft.parents.at(begin + node);
}

// Records are untrusted: a header or a parent that cannot be right yields false and a status bit.
template <class Layout>
bool read_path(const Problem& problem, const Layout& layout, uint32_t magic, const std::byte* record, int64_t tip,
               const Execution& execution, Path* path) {
  RecordHeader header;
  std::memcpy(&header, record, sizeof(header));
  const bool known = header.magic == magic && header.version_form == layout.version_form &&
                     header.geometry == layout.geometry && header.nodes >= 0 && header.nodes <= problem.max_nodes;
  if (!known && !planted(Fault::record_header_unchecked)) {
    set_device_status(execution, KDA_DEVICE_BAD_RECORD);
    return false;
  }
  if (tip >= header.nodes) {
    set_device_status(execution, KDA_DEVICE_BAD_TIP);
    return false;
  }
  int reversed[kMaxDraftNodes];
  int count = 0;
  for (int node = static_cast<int>(tip); node >= 0;) {
    reversed[count++] = node;
    RecordParent entry;
    std::memcpy(&entry, record + sizeof(header) + node * sizeof(entry), sizeof(entry));
    if (entry.parent >= node) {
      set_device_status(execution, KDA_DEVICE_BAD_RECORD);
      return false;
    }
    node = entry.parent;
  }
  path->count = count;
  for (int i = 0; i < count; ++i) path->nodes[i] = reversed[count - 1 - i];
  if (planted(Fault::commit_before_tip) && path->count > 0) --path->count;
  return true;
}

inline void write_header(std::byte* record, uint32_t magic, uint32_t version_form, uint32_t geometry, int64_t nodes) {
  const RecordHeader header{magic, version_form, static_cast<int32_t>(nodes), geometry};
  std::memcpy(record, &header, sizeof(header));
}

inline void write_parent(std::byte* record, int64_t node, int64_t parent) {
  const RecordParent entry{static_cast<int32_t>(parent), 0};
  std::memcpy(record + sizeof(RecordHeader) + node * int64_t{sizeof(entry)}, &entry, sizeof(entry));
}

// One value head's part of a node.
void write_record_node(const Problem& problem, std::byte* record, int64_t node, int value_head,
                       const TokenInputs& tokens, int64_t token, const TokenTerms& terms, const float* u);

// Repeats a recorded node on one unit's state: the same operands, the same arithmetic, the same bits as verify.
void replay_node(const Problem& problem, const std::byte* record, int node, int value_head, float* state);

// Between two nodes the state passes through the pool's dtype, as it does between two decode calls.
inline void pass_through_pool(const Problem& problem, float* state) {
  if (!planted(Fault::pool_rounding_skipped)) round_state(problem, problem.state, state);
}

// Applies a recorded path to the rows' states: commit, and verify's pending commit.
struct CommitTarget {
  StatePool state, dst;
  StateSnapshots snapshots;
  RecordBuffer records;
  int layer = 0;
};

// Leaves in `state` [V, K] what the next token of the row starts from.
void commit_unit(const Problem& problem, const Rows& rows, int64_t row, int value_head, const Path& path,
                 int64_t record_row, const CommitTarget& target, float* state);

}  // namespace kda::reference
