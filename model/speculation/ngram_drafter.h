// Drafts by look-up: what followed the last few tokens when they occurred before, in the prompt or in the output.
#pragma once

#include <vector>

#include "model/speculation/drafter.h"

namespace kda::speculation {

class NgramDrafter : public Drafter {
 public:
  explicit NgramDrafter(const TreeShape& shape) : shape_(shape) {}

  void reset() override { history_.clear(); }
  void observe(std::span<const int32_t> tokens, std::span<const float> features) override;
  DraftTree propose(int32_t root) override;

 private:
  // A place in the history whose last `length` tokens are the sequence's last tokens.
  struct Match {
    int64_t end;  // index after the match: where its continuation begins
    int length;
  };
  std::vector<Match> matches() const;

  TreeShape shape_;
  std::vector<int32_t> history_;
};

}  // namespace kda::speculation
