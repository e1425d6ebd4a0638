#include "cpu/tree_walk.h"

#include <bit>

#include "cpu/scratch.h"

namespace kda::cpu {
namespace {

class Walker {
 public:
  Walker(const int16_t* parents, int nodes, bool keep_all) : parents_(parents), nodes_(nodes), keep_all_(keep_all) {
    for (int i = nodes - 1; i >= 0; --i) {
      ++size_[i];
      if (parents[i] >= 0) size_[parents[i]] = static_cast<int16_t>(size_[parents[i]] + size_[i]);
    }
  }

  // The children of `node`, whose state is in `tile`. The first child's sums may have been made with node's update.
  void visit_children(int node, int tile, bool first_is_summed) {
    const int heaviest = heaviest_child(node);
    int previous = -1;
    for (int child = next_child(node, heaviest, previous); child >= 0; child = next_child(node, heaviest, previous)) {
      if (!(previous < 0 && first_is_summed)) emit({.source = tile, .target = tile, .update = -1, .next = child});
      visit(child, tile, child == heaviest);
      previous = child;
    }
  }

  TreeWalk walk;

 private:
  void visit(int node, int parent_tile, bool last_child) {
    const int first = next_child(node, heaviest_child(node), -1);
    if (first < 0 && !keep_all_) return;
    const bool in_place = last_child && parent_tile != kCommittedState;
    const int tile = in_place ? parent_tile : std::countr_one(used_);
    used_ |= 1u << tile;
    emit({.source = parent_tile, .target = tile, .update = node, .next = first});
    visit_children(node, tile, true);
    if (!in_place) used_ &= ~(1u << tile);
  }

  // The children in order, the heaviest last.
  int next_child(int node, int heaviest, int previous) const {
    if (heaviest < 0 || previous == heaviest) return -1;
    for (int i = previous + 1; i < nodes_; ++i) {
      if (parents_[i] == node && i != heaviest) return i;
    }
    return heaviest;
  }

  int heaviest_child(int node) const {
    int best = -1;
    for (int i = node + 1; i < nodes_; ++i) {
      if (parents_[i] == node && (best < 0 || size_[i] > size_[best])) best = i;
    }
    return best;
  }

  void emit(const TreeStep& step) { walk.steps[walk.count++] = step; }

  const int16_t* parents_;
  int nodes_;
  bool keep_all_;
  int16_t size_[kMaxDraftNodes] = {};
  uint32_t used_ = 0;
};

// A root takes a tile, and so does each step to a child that is not the heaviest.
static_assert(kTreeTiles >= 1 + std::bit_width(static_cast<unsigned>(kMaxDraftNodes)));

}  // namespace

TreeWalk walk_tree(const int16_t* parents, int nodes, bool keep_all) {
  Walker walker(parents, nodes, keep_all);
  walker.visit_children(-1, kCommittedState, false);
  return walker.walk;
}

}  // namespace kda::cpu
