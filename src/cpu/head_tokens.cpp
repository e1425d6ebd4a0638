#include "cpu/head_tokens.h"

#include <cstring>

#include "cpu/half.h"

namespace kda::cpu {

HeadTokens::HeadTokens(const Problem& problem, const TargetFunctions& functions, const TokenInputs& inputs,
                       int64_t value_head, Lane& lane)
    : problem_(problem),
      functions_(functions),
      inputs_(inputs),
      lane_(lane),
      value_head_(value_head),
      head_(value_head / problem.value_heads_per_head()) {
  float* bias = lane.bias();
  const int64_t padded = lane.layout().key_padded;
  for (int64_t k = 0; k < padded; ++k) bias[k] = 0.0f;
  if (inputs.dt_bias.present()) {
    const std::byte* from = inputs.dt_bias.data + value_head * problem.key_dim * size_of(inputs.dt_bias.dtype);
    functions.widen(from, inputs.dt_bias.dtype, problem.key_dim, bias);
  }
  parameters_ = {.gate = problem.gate,
                 .beta = problem.beta,
                 .qk_l2norm = problem.qk_l2norm,
                 .scale = inputs.scale,
                 .lower_bound = inputs.lower_bound,
                 .exp_A = inputs.A_log.present()
                              ? functions.exp(load_element(inputs.A_log.data, inputs.A_log.dtype, value_head))
                              : 1.0f,
                 .bias = bias};
}

NormFactor HeadTokens::prepare(int64_t token, int index) {
  NormFactor key_rnorm;
  functions_.prepare({.head = &parameters_,
                      .q = element(inputs_.q, token, head_),
                      .k = element(inputs_.k, token, head_),
                      .v = element(inputs_.v, token, value_head_),
                      .a = element(inputs_.a, token, value_head_),
                      .b = element(inputs_.b, token, value_head_),
                      .io = problem_.io,
                      .gate_dtype = inputs_.a.dtype,
                      .beta_dtype = inputs_.b.dtype,
                      .key_dim = problem_.key_dim,
                      .value_dim = problem_.value_dim,
                      .token = &lane_.reset_token(index),
                      .key_rnorm = &key_rnorm});
  return key_rnorm;
}

void HeadTokens::store_out(int64_t token, int index, int64_t first_row, int64_t rows) const {
  std::byte* out = element(inputs_.out, token, value_head_) + first_row * size_of(inputs_.out.dtype);
  functions_.narrow(lane_.token(index).out + first_row, rows, inputs_.out.dtype, out);
}

void HeadTokens::store_zero_out(int64_t token, int64_t first_row, int64_t rows) const {
  const int64_t size = size_of(inputs_.out.dtype);
  std::memset(element(inputs_.out, token, value_head_) + first_row * size, 0, rows * size);
}

}  // namespace kda::cpu
