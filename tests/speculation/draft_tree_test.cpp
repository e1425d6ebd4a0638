#include "model/speculation/draft_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

namespace kda::speculation {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CandidatePool, KeepsTheBestCandidatesOfAllLevels) {
  CandidatePool pool({2, 2, 4});
  const int a = pool.add(10, -1, std::log(0.6f));
  const int b = pool.add(11, -1, std::log(0.3f));
  EXPECT_THAT(pool.best_of_level(), ElementsAre(a, b));
  pool.add(20, a, std::log(0.7f));  // path 0.42
  pool.add(21, a, std::log(0.1f));  // path 0.06
  pool.add(22, b, std::log(0.9f));  // path 0.27
  pool.add(23, b, std::log(0.1f));  // path 0.03
  const DraftTree tree = pool.best_tree(5);
  EXPECT_THAT(tree.tokens, ElementsAre(5, 10, 11, 20));
  EXPECT_THAT(tree.parents, ElementsAre(-1, 0, 0, 1));
  EXPECT_EQ(tree.child_with_token(0, 11), 2);
  EXPECT_EQ(tree.child_with_token(1, 20), 3);
  EXPECT_EQ(tree.child_with_token(1, 11), -1);
}

TEST(CandidatePool, TiesGoTowardShallow) {
  CandidatePool pool({2, 2, 3});
  const int a = pool.add(1, -1, 0.0f);
  const int b = pool.add(2, -1, 0.0f);
  EXPECT_THAT(pool.best_of_level(), ElementsAre(a, b));
  pool.add(3, a, 0.0f);
  EXPECT_THAT(pool.best_tree(0).tokens, ElementsAre(0, 1, 2));
}

TEST(CandidatePool, ExpandsTheBestOfTheLastLevelOnly) {
  CandidatePool pool({3, 2, 16});
  pool.add(1, -1, -0.1f);
  pool.add(2, -1, -0.2f);
  EXPECT_EQ(pool.best_of_level().size(), 2u);
  pool.add(3, 0, -5.0f);
  const int better = pool.add(4, 0, -0.3f);
  const int best = pool.add(5, 1, -0.1f);
  EXPECT_THAT(pool.best_of_level(), ElementsAre(best, better));
}

TEST(CandidatePool, FewerCandidatesMakeASmallerTree) {
  CandidatePool pool({4, 1, 16});
  int parent = -1;
  for (int step = 0; step < 4; ++step) parent = pool.add(step, parent, -1.0f);
  EXPECT_EQ(pool.best_tree(9).size(), 5);  // steps + 1
  EXPECT_EQ(CandidatePool({4, 1, 16}).best_tree(9).size(), 1);
}

// Scores that are no numbers come from broken drafters; the tree must stay one.
TEST(CandidatePool, TreesAreConnectedWhateverTheScores) {
  std::mt19937 random(7);
  const float odd[] = {0.0f,
                       -1.0f,
                       -2.0f,
                       3.0f,
                       std::nanf(""),
                       -std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::infinity()};
  for (int trial = 0; trial < 2000; ++trial) {
    const TreeShape shape{1 + static_cast<int>(random() % 6), 1 + static_cast<int>(random() % 8),
                          2 + static_cast<int>(random() % 31)};
    CandidatePool pool(shape);
    const auto expand = [&](int parent) {
      for (int i = 0; i < shape.topk; ++i) pool.add(i, parent, odd[random() % std::size(odd)]);
    };
    expand(-1);
    for (int step = 1; step < shape.steps; ++step) {
      for (int index : pool.best_of_level()) expand(index);
    }
    EXPECT_EQ(pool.size(), shape.topk + (shape.steps - 1) * shape.topk * shape.topk);
    const DraftTree tree = pool.best_tree(0);
    ASSERT_EQ(tree.size(), std::min(shape.draft_tokens, 1 + pool.size()));
    std::set<std::pair<int32_t, int32_t>> siblings;
    for (int node = 1; node < tree.size(); ++node) {
      ASSERT_GE(tree.parents[node], 0);
      ASSERT_LT(tree.parents[node], node);
      ASSERT_TRUE(siblings.emplace(tree.parents[node], tree.tokens[node]).second) << "twin siblings";
    }
  }
}

TEST(TreeShape, LimitsAreNamed) {
  EXPECT_EQ(shape_error({5, 4, 16}), "");
  EXPECT_EQ(shape_error({1, 1, 2}), "");
  EXPECT_EQ(shape_error({5, 4, kMaxTreeNodes}), "");
  EXPECT_THAT(shape_error({5, 4, 65}), HasSubstr("--speculative-num-draft-tokens 65 is not between 2 and 64"));
  EXPECT_THAT(shape_error({5, 4, 1}), HasSubstr("--speculative-num-draft-tokens 1"));
  EXPECT_THAT(shape_error({0, 4, 16}), HasSubstr("--speculative-num-steps 0"));
  EXPECT_THAT(shape_error({5, -1, 16}), HasSubstr("--speculative-eagle-topk -1"));
}

}  // namespace
}  // namespace kda::speculation
