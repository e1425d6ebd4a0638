// Where the speculation meets the model runner.
#include "model/speculation/eagle3_drafter.h"
#include "model/speculation/target.h"

namespace kda::speculation {

io::Result<model::RowsView> SessionTarget::prefill(std::span<const int32_t> tokens,
                                                   const model::PrefillOptions& options) {
  return session_.prefill(tokens, options);
}

io::Result<model::RowsView> SessionTarget::step(int32_t token) { return session_.step(token); }

io::Result<model::RowsView> SessionTarget::verify(const DraftTree& tree) {
  return session_.verify(tree.tokens, tree.parents);
}

io::Outcome SessionTarget::accept(int32_t tip) { return session_.accept(tip); }

Eagle3Target Eagle3Target::of(const model::Model& target) {
  return {&target.threads(),          target.config().hidden_size,
          target.config().vocab_size, static_cast<int>(target.options().feature_layers.size()),
          target.embedding(),         target.lm_head()};
}

}  // namespace kda::speculation
