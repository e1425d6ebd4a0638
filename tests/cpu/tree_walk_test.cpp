// The order of a draft's nodes: every node once, from its parent's state, within the tiles that scratch provides.
#include "cpu/tree_walk.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cpu/scratch.h"

namespace kda::cpu {
namespace {

// Follows the steps; node_in[tile] is the node whose state a tile holds.
void check_walk(const std::vector<int16_t>& parents, bool keep_all) {
  const int nodes = static_cast<int>(parents.size());
  const TreeWalk walk = walk_tree(parents.data(), nodes, keep_all);
  std::vector<int> node_in(kTreeTiles, -2), computed(nodes), updated(nodes);
  for (int i = 0; i < walk.count; ++i) {
    const TreeStep& s = walk.steps[i];
    ASSERT_LT(s.source, kTreeTiles);
    int holds = s.source == kCommittedState ? -1 : node_in[s.source];
    if (s.update >= 0) {
      ASSERT_EQ(holds, parents[s.update]);
      ASSERT_EQ(computed[s.update], 1) << "updated before its correction is known";
      ASSERT_GE(s.target, 0);
      ASSERT_LT(s.target, kTreeTiles);
      ++updated[s.update];
      holds = node_in[s.target] = s.update;
    }
    if (s.next >= 0) {
      ASSERT_EQ(holds, parents[s.next]);
      ++computed[s.next];
    }
  }
  for (int i = 0; i < nodes; ++i) {
    EXPECT_EQ(computed[i], 1) << "node " << i;
    EXPECT_LE(updated[i], 1);
    EXPECT_GE(updated[i], keep_all ? 1 : 0) << "node " << i;
  }
}

TEST(TreeWalk, RandomTrees) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const int nodes = 1 + static_cast<int>(random() % kMaxDraftNodes), shape = static_cast<int>(random() % 4);
    std::vector<int16_t> parents;
    for (int i = 0; i < nodes; ++i) {
      const int any = static_cast<int>(random() % (i + 1)) - 1, half = (i + 1) / 2 - 1;
      parents.push_back(static_cast<int16_t>(shape == 0   ? any
                                             : shape == 1 ? half
                                             : shape == 2 ? i - 1
                                                          : std::max(any, i - 4)));
    }
    check_walk(parents, round % 2 == 0);
  }
}

// The worst case for live states: binomial trees, where every node has children of all smaller sizes.
TEST(TreeWalk, BinomialTree) {
  std::vector<int16_t> parents = {-1};
  for (int i = 1; i < kMaxDraftNodes; ++i) parents.push_back(static_cast<int16_t>(i & (i - 1)));
  check_walk(parents, true);
  check_walk(parents, false);
}

}  // namespace
}  // namespace kda::cpu
