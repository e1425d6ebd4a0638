// A target of a few tokens whose next-token law depends on the whole context, for tests of everything around a model.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "model/speculation/generate.h"

namespace kda::speculation {

// Probabilities are multiples of 1/kGrain and a row of logits is their logarithm, so that coins on a grid of kGrain
// values reproduce every law exactly.
class FakeTarget : public Target {
 public:
  static constexpr int kGrain = 8;

  // Faults that a target or the loop around it could have; tests must notice each.
  enum class Fault { kNone, kAcceptsOneTooFar, kAcceptsOneTooFew, kIgnoresParents };

  explicit FakeTarget(int vocabulary, uint64_t seed = 1, Fault fault = Fault::kNone)
      : vocabulary_(vocabulary), seed_(seed), fault_(fault) {}

  // Multiples of 1/kGrain, as counts; some are 0.
  std::vector<int> law(std::span<const int32_t> context) const {
    uint64_t hash = seed_;
    for (int32_t token : context) hash = (hash ^ static_cast<uint64_t>(token + 1)) * 0x100000001b3ull + 0x9e37;
    std::mt19937_64 random(hash);
    std::vector<int> counts(vocabulary_, 0);
    for (int i = 0; i < kGrain; ++i) ++counts[random() % static_cast<uint64_t>(vocabulary_)];
    return counts;
  }

  const std::vector<int32_t>& context() const { return context_; }
  int64_t prompt_chunk = 3;

  io::Result<model::RowsView> prefill(std::span<const int32_t> tokens, const model::PrefillOptions& options) override {
    const int64_t total = static_cast<int64_t>(tokens.size());
    for (int64_t first = 0; first < total; first += prompt_chunk) {
      const int64_t rows = std::min(prompt_chunk, total - first);
      context_.insert(context_.end(), tokens.begin() + first, tokens.begin() + first + rows);
      features_.assign(rows, 0.5f);
      if (options.on_chunk && !options.on_chunk({first + rows, total, first, rows, features_, {}})) {
        return model::RowsView{};
      }
    }
    return row_of({context_});
  }

  io::Result<model::RowsView> step(int32_t token) override {
    context_.push_back(token);
    return row_of({context_});
  }

  io::Result<model::RowsView> verify(const DraftTree& tree) override {
    paths_.clear();
    for (int node = 0; node < tree.size(); ++node) {
      const int32_t parent = tree.parents[node];
      if (parent >= node || (node == 0) != (parent < 0)) return io::Error{"not a tree"};
      const bool chain = fault_ == Fault::kIgnoresParents && node > 0;
      std::vector<int32_t> path = chain ? paths_[node - 1] : parent < 0 ? context_ : paths_[parent];
      path.push_back(tree.tokens[node]);
      paths_.push_back(std::move(path));
    }
    parents_ = tree.parents;
    return row_of(paths_);
  }

  io::Outcome accept(int32_t tip) override {
    if (fault_ == Fault::kAcceptsOneTooFar) tip = std::min<int32_t>(tip + 1, static_cast<int32_t>(paths_.size()) - 1);
    if (fault_ == Fault::kAcceptsOneTooFew && tip > 0) tip = parents_[tip];
    context_ = paths_[tip];
    return io::Done{};
  }

 private:
  io::Result<model::RowsView> row_of(const std::vector<std::vector<int32_t>>& contexts) {
    logits_.clear();
    for (const std::vector<int32_t>& context : contexts) {
      for (int count : law(context)) {
        logits_.push_back(count == 0 ? -std::numeric_limits<float>::infinity()
                                     : std::log(static_cast<float>(count) / kGrain));
      }
    }
    features_.assign(contexts.size(), 0.5f);
    return model::RowsView{static_cast<int64_t>(contexts.size()), logits_, features_};
  }

  int vocabulary_;
  uint64_t seed_;
  Fault fault_;
  std::vector<int32_t> context_;
  std::vector<std::vector<int32_t>> paths_;
  std::vector<int32_t> parents_;
  std::vector<float> logits_, features_;
};

// Draws random trees, so that every shape of tree and every kind of agreement with the target occurs.
class RandomDrafter : public Drafter {
 public:
  RandomDrafter(int vocabulary, const TreeShape& shape, uint64_t seed)
      : vocabulary_(vocabulary), shape_(shape), random_(seed) {}

  void reset() override { observed.clear(); }
  void observe(std::span<const int32_t> tokens, std::span<const float> features) override {
    observed.insert(observed.end(), tokens.begin(), tokens.end());
    feature_rows += static_cast<int64_t>(features.size());
  }
  DraftTree propose(int32_t root) override {
    CandidatePool pool(shape_);
    const auto expand = [&](int parent) {
      std::vector<int32_t> tokens(vocabulary_);
      for (int i = 0; i < vocabulary_; ++i) tokens[i] = i;
      std::shuffle(tokens.begin(), tokens.end(), random_);
      for (int i = 0; i < std::min(shape_.topk, vocabulary_); ++i) {
        pool.add(tokens[i], parent, -static_cast<float>(random_() % 4));  // ties are frequent
      }
    };
    expand(-1);
    for (int step = 1; step < shape_.steps; ++step) {
      for (int index : pool.best_of_level()) expand(index);
    }
    roots.push_back(root);
    return pool.best_tree(root);
  }

  std::vector<int32_t> observed, roots;
  int64_t feature_rows = 0;

 private:
  int vocabulary_;
  TreeShape shape_;
  std::mt19937_64 random_;
};

}  // namespace kda::speculation
