// What proposes the tokens that the target then verifies.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "model/speculation/draft_tree.h"

namespace kda::speculation {

// A drafter of one sequence. It can be wrong about everything without changing a generated token.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // Forgets the sequence.
  virtual void reset() = 0;

  // Tokens that now belong to the sequence and the target's features of each, [tokens, feature width] row-major (empty
  // for drafters that use none). Prompt chunks and accepted paths arrive in order, without gaps; the root of the last
  // propose comes first in the next call.
  virtual void observe(std::span<const int32_t> tokens, std::span<const float> features) = 0;

  // A tree of continuations of `root`, the token that follows the observed ones.
  virtual DraftTree propose(int32_t root) = 0;
};

}  // namespace kda::speculation
