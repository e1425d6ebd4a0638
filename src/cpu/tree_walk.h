// The order in which a draft's nodes are stepped, so that few states are alive at once.
//
// Depth first, the child with the largest subtree last and in its parent's place: going to any other child at least
// halves the subtree, so at most 1 + log2(64) + 1 states are alive besides the committed one (kTreeTiles).
#pragma once

#include <array>
#include <cstdint>

#include "core/types.h"

namespace kda::cpu {

constexpr int kCommittedState = -1;

// Read state `source`; if update >= 0 apply that node's correction and keep the result in `target`; if next >= 0
// compute that node's correction and output from what was read (and updated).
struct TreeStep {
  int source, target;  // tile index; source may be kCommittedState
  int update, next;    // node index or -1
};

struct TreeWalk {
  std::array<TreeStep, 2 * kMaxDraftNodes> steps;
  int count = 0;
};

// parents[i] < i, -1 = the committed state. keep_all: the state after every node is wanted, not only those with
// children.
TreeWalk walk_tree(const int16_t* parents, int nodes, bool keep_all);

}  // namespace kda::cpu
