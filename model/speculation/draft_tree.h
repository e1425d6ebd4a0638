// Draft trees, built as EAGLE-2 builds them. Everything that proposes tokens fills a CandidatePool level by level and
// takes the best connected tree out of it; everything that verifies reads a DraftTree.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kda::speculation {

// Most nodes of a tree, the root included: what one verify call of the library takes.
inline constexpr int kMaxTreeNodes = 64;
// Bound a round's pool (topk + (steps - 1) * topk^2 candidates) and the drafter's own work.
inline constexpr int kMaxSteps = 63;
inline constexpr int kMaxTopk = 64;

// The size of a tree in SGLang's terms. The default is the fastest tree of the built-in model's drafter on a CPU, where
// every node costs (docs/performance.md, Generation).
struct TreeShape {
  int steps = 2;         // --speculative-num-steps: levels below the root
  int topk = 2;          // --speculative-eagle-topk: children a node, and nodes expanded a level
  int draft_tokens = 4;  // --speculative-num-draft-tokens: most nodes of the tree, the root included
};

// Empty when a tree of that shape can be verified, else what is wrong with it, naming the option and its limits.
std::string shape_error(const TreeShape& shape);

// Nodes in topological order (parent before child). Node 0 is the root: the last accepted token, which the target has
// not seen yet; its parent is -1, the committed state. Siblings carry distinct tokens.
struct DraftTree {
  std::vector<int32_t> tokens;
  std::vector<int32_t> parents;

  int size() const { return static_cast<int>(tokens.size()); }
  // The child of `node` that carries `token`, or -1.
  int child_with_token(int node, int32_t token) const;
};

// All candidates of one round, scored by the log-probability of their path. A child never scores above its parent and
// is added after it, so that the best n candidates (ties toward the earlier) always form a connected tree.
class CandidatePool {
 public:
  explicit CandidatePool(const TreeShape& shape) : shape_(shape) {}

  // Adds a child of candidate `parent` (-1: of the root) and returns its index. log_prob: of the token given its path;
  // values above 0 and NaN count as 0 and minus infinity.
  int add(int32_t token, int parent, float log_prob);

  // Closes the level added since the last call: indices of its best `topk` candidates, best first.
  std::vector<int> best_of_level();

  // The tree of the best draft_tokens - 1 candidates and the root.
  DraftTree best_tree(int32_t root) const;

  int size() const { return static_cast<int>(candidates_.size()); }
  int32_t token(int index) const { return candidates_[index].token; }
  int parent(int index) const { return candidates_[index].parent; }
  float score(int index) const { return candidates_[index].score; }

 private:
  struct Candidate {
    int32_t token;
    int parent;
    float score;
  };
  // Indices of [first, end) ordered by score, ties toward the earlier; at most `count` of them.
  std::vector<int> best(int first, int count) const;

  TreeShape shape_;
  int level_begin_ = 0;
  std::vector<Candidate> candidates_;
};

}  // namespace kda::speculation
