// The token recurrence of one unit (row, value head): the only place of this backend that knows the formulas.
//
// Everything is computed in double and rounded to fp32 where the contract keeps fp32 between tokens or in records
// (state, decay, correction u, norm of k). So decode, verify, commit and every mixture of them see the same bits.
#pragma once

#include "core/launch.h"
#include "core/record_format.h"

namespace kda::reference {

inline double value_of(NormFactor factor) { return double{factor.high} + double{factor.low}; }

// What the recurrence needs of one token and one value head.
struct TokenTerms {
  double q[kMaxHeadDim], k[kMaxHeadDim];  // normalised
  double v[kMaxHeadDim];
  float decay[kMaxHeadDim];  // exp(g)
  NormFactor k_rnorm;        // k-hat = k * k_rnorm
  double beta;
};

// `first_token` is the first token of the row; only planted faults read it.
void token_terms(const Problem& problem, const TokenInputs& tokens, int64_t token, int64_t first_token, int value_head,
                 TokenTerms* terms);

// S <- S diag(decay) + u k^T, rounded to fp32.
void apply_token(const Problem& problem, const float* decay, const double* k, const float* u, float* state);

// One token: writes u [V] and updates the state [V, K].
void step(const Problem& problem, const TokenTerms& terms, float* state, float* u);

// out [V] = scale * S q, stored to the token's output.
void write_out(const Problem& problem, const TokenInputs& tokens, int64_t token, int value_head,
               const TokenTerms& terms, const float* state);

// The output tokens of a null row are zero.
void write_zero_out(const Problem& problem, const TokenInputs& tokens, int64_t begin, int64_t end);

}  // namespace kda::reference
