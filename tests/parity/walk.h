// Random drafts and the decode calls that walk them: the yardstick of exact numerics, where every way to a state gives
// the bits that decode gives.
#pragma once

#include "parity/phases.h"

namespace parity {

using Bits = std::vector<std::byte>;

// The named tokens as tensors of their own, bit for bit.
TokenTensors gather(const Spec& spec, const TokenTensors& t, const std::vector<int64_t>& tokens);

Bits token_bits(const Tensor& tensor, int64_t token);

// Rows of one draft each, on one token axis.
struct DraftBatch {
  Spec spec;
  Rows rows;  // row i starts from slot i
  std::vector<std::vector<int>> parents;
  TokenTensors tokens;
  int count() const { return rows.count(); }
};
DraftBatch random_batch(Random& r, const Spec& spec, int rows, int max_nodes);

// What decode gives for every node of a batch: outputs and states, bit for bit.
struct Walk {
  std::vector<std::vector<Bits>> out, state;  // [row][node]
};
// `pool` holds the committed state of row i in slot i. Decodes depth by depth, every node from its parent's state to a
// slot of its own, so that nodes of one depth are one batch.
Walk walk_by_decode(const Plan& plan, const DraftBatch& batch, const Tensor& pool);

// The same for the convolution: x and out are [T, C].
struct ConvBatch {
  Spec spec;
  Rows rows;
  std::vector<std::vector<int>> parents;
  Tensor x, weight, bias;
  kda_conv_args args(const Tensor& out) const;
};
ConvBatch random_conv_batch(Random& r, const Spec& spec, int rows, int max_nodes);
Walk walk_conv_by_decode(const Plan& plan, const ConvBatch& batch, const Tensor& pool);

// Decode's path to a slot: the first `slots` slots of `pool` filled at random.
Tensor filled_pool(Random& r, const Spec& spec, int64_t slots, int64_t spare);

}  // namespace parity
