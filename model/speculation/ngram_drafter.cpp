#include "model/speculation/ngram_drafter.h"

#include <algorithm>
#include <cmath>

namespace kda::speculation {

namespace {

constexpr int kLongestMatch = 8;
constexpr size_t kMostMatches = 32;  // the best ones decide; more only cost time
// A match longer by one token counts this many times as much. Longer matches predict better, yet several shorter ones
// that agree still form a branch.
constexpr double kWeightPerToken = 4.0;

// Continuations of the matches, merged: one entry a distinct prefix.
struct TrieNode {
  int32_t token;
  double weight;
  std::vector<int> children;
};

int child_of(std::vector<TrieNode>& trie, int node, int32_t token) {
  for (int child : trie[node].children) {
    if (trie[child].token == token) return child;
  }
  const int child = static_cast<int>(trie.size());
  trie.push_back({token, 0, {}});
  trie[node].children.push_back(child);
  return child;
}

}  // namespace

void NgramDrafter::observe(std::span<const int32_t> tokens, std::span<const float>) {
  history_.insert(history_.end(), tokens.begin(), tokens.end());
}

std::vector<NgramDrafter::Match> NgramDrafter::matches() const {
  const int64_t size = static_cast<int64_t>(history_.size());
  std::vector<Match> found;
  for (int64_t end = size - 1; end >= 1; --end) {  // most recent first
    int length = 0;
    while (length < kLongestMatch && length < end && history_[end - 1 - length] == history_[size - 1 - length])
      ++length;
    if (length > 0) found.push_back({end, length});
  }
  std::stable_sort(found.begin(), found.end(), [](const Match& a, const Match& b) { return a.length > b.length; });
  if (found.size() > kMostMatches) found.resize(kMostMatches);
  return found;
}

DraftTree NgramDrafter::propose(int32_t root) {
  history_.push_back(root);
  std::vector<TrieNode> trie{{root, 0, {}}};
  for (const Match& match : matches()) {
    const double weight = std::pow(kWeightPerToken, match.length);
    // Where the history ends, the text is taken to repeat with the distance between the two matching places.
    const int64_t period = static_cast<int64_t>(history_.size()) - match.end;
    int node = 0;
    trie[0].weight += weight;
    for (int64_t i = 0; i < shape_.steps; ++i) {
      node = child_of(trie, node, history_[match.end + i % period]);
      trie[node].weight += weight;
    }
  }
  history_.pop_back();  // it comes again, as the first token of the next observe

  CandidatePool pool(shape_);
  std::vector<int> trie_of;  // by pool index
  const auto expand = [&](int parent) {
    const int parent_node = parent < 0 ? 0 : trie_of[parent];
    std::vector<int> children = trie[parent_node].children;
    std::stable_sort(children.begin(), children.end(), [&](int a, int b) { return trie[a].weight > trie[b].weight; });
    if (static_cast<int>(children.size()) > shape_.topk) children.resize(shape_.topk);
    for (int child : children) {
      pool.add(trie[child].token, parent, static_cast<float>(std::log(trie[child].weight / trie[parent_node].weight)));
      trie_of.push_back(child);
    }
  };
  expand(-1);
  for (int step = 1; step < shape_.steps; ++step) {
    for (int index : pool.best_of_level()) expand(index);
  }
  return pool.best_tree(root);
}

}  // namespace kda::speculation
