// Applying a recorded path to one unit: commit, and the pending commit of verify.
#pragma once

#include "cpu/head_tokens.h"
#include "cpu/records.h"
#include "cpu/snapshots.h"

namespace kda::cpu {

struct CommitUnit {
  const Problem& problem;
  const TargetFunctions& functions;
  Lane& lane;
  const Unit& unit;
  int64_t row;
  int layer;
  StoredState source, destination;  // absent: zeros, not stored
  const RecordPath& path;           // not empty
  const std::byte* record;          // the record row
  const StateSnapshots& snapshots;
  const StatePool& own_pool;
};

// Makes lane tokens 0.. the nodes of the path; before the first tile.
void prepare_path(const CommitUnit&);

// Value rows [first, first + rows) of the unit: replays the path with a decode's rounding and stores snapshots and the
// final state. Where result is given, it receives the state that the next token starts from, in the state's dtype.
void commit_tile(const CommitUnit&, int64_t first, int64_t rows, const StateRows* result);

}  // namespace kda::cpu
