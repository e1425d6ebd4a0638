#include "model/speculation/draft_tree.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kda::speculation {

namespace {

std::string range_error(const char* option, int value, int low, int high, const char* why) {
  if (value >= low && value <= high) return "";
  return std::string(option) + " " + std::to_string(value) + " is not between " + std::to_string(low) + " and " +
         std::to_string(high) + why;
}

}  // namespace

std::string shape_error(const TreeShape& shape) {
  std::string error = range_error("--speculative-num-steps", shape.steps, 1, kMaxSteps, "");
  if (error.empty()) error = range_error("--speculative-eagle-topk", shape.topk, 1, kMaxTopk, "");
  if (error.empty()) {
    error = range_error("--speculative-num-draft-tokens", shape.draft_tokens, 2, kMaxTreeNodes,
                        " (nodes of the tree, the root included)");
  }
  return error;
}

int DraftTree::child_with_token(int node, int32_t token) const {
  for (int i = node + 1; i < size(); ++i) {
    if (parents[i] == node && tokens[i] == token) return i;
  }
  return -1;
}

int CandidatePool::add(int32_t token, int parent, float log_prob) {
  const float above = parent < 0 ? 0.0f : candidates_[parent].score;
  float score = above + std::min(log_prob, 0.0f);
  if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
  candidates_.push_back({token, parent, score});
  return static_cast<int>(candidates_.size()) - 1;
}

std::vector<int> CandidatePool::best(int first, int count) const {
  std::vector<int> order(candidates_.size() - first);
  std::iota(order.begin(), order.end(), first);
  std::stable_sort(order.begin(), order.end(),
                   [this](int a, int b) { return candidates_[a].score > candidates_[b].score; });
  if (static_cast<int>(order.size()) > count) order.resize(count);
  return order;
}

std::vector<int> CandidatePool::best_of_level() {
  std::vector<int> chosen = best(level_begin_, shape_.topk);
  level_begin_ = static_cast<int>(candidates_.size());
  return chosen;
}

DraftTree CandidatePool::best_tree(int32_t root) const {
  std::vector<int> chosen = best(0, shape_.draft_tokens - 1);
  // Pool order is level order, hence topological.
  std::sort(chosen.begin(), chosen.end());
  DraftTree tree{{root}, {-1}};
  std::vector<int32_t> node_of(candidates_.size(), -1);
  for (int index : chosen) {
    const Candidate& candidate = candidates_[index];
    node_of[index] = tree.size();
    tree.tokens.push_back(candidate.token);
    tree.parents.push_back(candidate.parent < 0 ? 0 : node_of[candidate.parent]);
  }
  return tree;
}

}  // namespace kda::speculation
