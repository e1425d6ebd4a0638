// The model as the generate loop sees it: one sequence that takes tokens or trees of tokens and gives logits.
#pragma once

#include <span>

#include "model/model.h"
#include "model/speculation/draft_tree.h"

namespace kda::speculation {

// See model::Session for the meaning of each call.
class Target {
 public:
  virtual ~Target() = default;
  virtual io::Result<model::RowsView> prefill(std::span<const int32_t> tokens,
                                              const model::PrefillOptions& options) = 0;
  virtual io::Result<model::RowsView> step(int32_t token) = 0;
  virtual io::Result<model::RowsView> verify(const DraftTree& tree) = 0;
  virtual io::Outcome accept(int32_t tip) = 0;
};

// A session of a Kimi-Linear model. The session must outlive it.
class SessionTarget : public Target {
 public:
  explicit SessionTarget(model::Session& session) : session_(session) {}
  io::Result<model::RowsView> prefill(std::span<const int32_t> tokens, const model::PrefillOptions& options) override;
  io::Result<model::RowsView> step(int32_t token) override;
  io::Result<model::RowsView> verify(const DraftTree& tree) override;
  io::Outcome accept(int32_t tip) override;

 private:
  model::Session& session_;
};

}  // namespace kda::speculation
