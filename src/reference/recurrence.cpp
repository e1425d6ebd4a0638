#include "reference/recurrence.h"

#include "reference/elements.h"
#include "reference/faults.h"

namespace kda::reference {
namespace {

int64_t offset_of(const TokenView& view, int64_t token, int64_t head, int64_t compact_row) {
  return token * (planted(Fault::token_stride_ignored) ? compact_row : view.token_stride) + head * view.head_stride;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return x > kSoftplusLinear ? x : std::log1p(std::exp(x)); }

double log_decay(const Problem& problem, const TokenInputs& tokens, double a, int value_head, int channel) {
  if (problem.gate == Gate::precomputed) return a;
  const bool biased = tokens.dt_bias.present() && !planted(Fault::dt_bias_dropped);
  const int64_t parameter = int64_t{value_head} * problem.key_dim + channel;
  const double x = a + (biased ? load(tokens.dt_bias.dtype, tokens.dt_bias.data, parameter) : 0);
  const double rate = tokens.A_log.present() ? std::exp(load(tokens.A_log.dtype, tokens.A_log.data, value_head)) : 1;
  if (problem.gate == Gate::softplus) return -rate * softplus(x);
  if (planted(Fault::bounded_as_clamp)) return std::max<double>(tokens.lower_bound, -rate * softplus(x));
  return tokens.lower_bound * sigmoid(rate * x);
}

double step_size(const Problem& problem, double b) {
  if (problem.beta == Beta::none) return b;
  return problem.beta == Beta::sigmoid2 ? 2 * sigmoid(b) : sigmoid(b);
}

double reciprocal_norm(const Problem& problem, const double* x) {
  if (!problem.qk_l2norm) return 1;
  double sum = planted(Fault::l2norm_without_epsilon) ? 0 : kL2NormEpsilon;
  for (int c = 0; c < problem.key_dim; ++c) sum += x[c] * x[c];
  return 1 / std::sqrt(sum);
}

}  // namespace

void token_terms(const Problem& problem, const TokenInputs& tokens, int64_t token, int64_t first_token, int value_head,
                 TokenTerms* terms) {
  const int K = problem.key_dim, V = problem.value_dim, H = problem.heads, HV = problem.value_heads;
  const int head = planted(Fault::wrong_head_mapping) ? value_head % H : value_head / problem.value_heads_per_head();
  const int64_t q_at = offset_of(tokens.q, token, head, int64_t{H} * K);
  const int64_t k_at = offset_of(tokens.k, token, head, int64_t{H} * K);
  const int64_t v_at = offset_of(tokens.v, token, value_head, int64_t{HV} * V);
  for (int c = 0; c < K; ++c) {
    terms->q[c] = load(tokens.q.dtype, tokens.q.data, q_at + c);
    terms->k[c] = load(tokens.k.dtype, tokens.k.data, k_at + c);
  }
  for (int c = 0; c < V; ++c) terms->v[c] = load(tokens.v.dtype, tokens.v.data, v_at + c);

  const double q_rnorm = reciprocal_norm(problem, terms->q);
  const double k_rnorm = reciprocal_norm(problem, terms->k);
  terms->k_rnorm.high = static_cast<float>(k_rnorm);
  terms->k_rnorm.low = static_cast<float>(k_rnorm - terms->k_rnorm.high);
  for (int c = 0; c < K; ++c) {
    terms->q[c] *= q_rnorm;
    terms->k[c] *= value_of(terms->k_rnorm);
  }

  const int gate_head = planted(Fault::gate_of_next_value_head) ? (value_head + 1) % HV : value_head;
  const int64_t gate_token = planted(Fault::gate_of_first_token) ? first_token : token;
  const int64_t a_at = offset_of(tokens.a, gate_token, gate_head, int64_t{HV} * K);
  for (int c = 0; c < K; ++c) {
    const double a = load(tokens.a.dtype, tokens.a.data, a_at + c);
    terms->decay[c] = static_cast<float>(std::exp(log_decay(problem, tokens, a, gate_head, c)));
  }
  const int64_t beta_token = planted(Fault::beta_of_first_token) ? first_token : token;
  const int64_t b_at = beta_token * tokens.b.token_stride + value_head * tokens.b.head_stride;
  terms->beta = step_size(problem, load(tokens.b.dtype, tokens.b.data, b_at));
}

void apply_token(const Problem& problem, const float* decay, const double* k, const float* u, float* state) {
  const int K = problem.key_dim;
  for (int v = 0; v < problem.value_dim; ++v) {
    for (int c = 0; c < K; ++c) {
      const double s = state[v * K + c], added = u[v] * k[c];
      state[v * K + c] =
          static_cast<float>(planted(Fault::decay_after_delta) ? (s + added) * decay[c] : s * decay[c] + added);
    }
  }
}

void step(const Problem& problem, const TokenTerms& terms, float* state, float* u) {
  const int K = problem.key_dim;
  for (int v = 0; v < problem.value_dim; ++v) {
    double predicted = 0;
    for (int c = 0; c < K; ++c) {
      const double decay = planted(Fault::decay_after_delta) ? 1 : terms.decay[c];
      predicted += state[v * K + c] * decay * terms.k[c];
    }
    u[v] = static_cast<float>(terms.beta * (terms.v[v] - predicted));
  }
  apply_token(problem, terms.decay, terms.k, u, state);
}

void write_out(const Problem& problem, const TokenInputs& tokens, int64_t token, int value_head,
               const TokenTerms& terms, const float* state) {
  const int K = problem.key_dim, V = problem.value_dim;
  const int64_t at = offset_of(tokens.out, token, value_head, int64_t{problem.value_heads} * V);
  for (int v = 0; v < V; ++v) {
    double sum = 0;
    for (int c = 0; c < K; ++c) sum += state[v * K + c] * terms.q[c];
    store(tokens.out.dtype, tokens.out.data, at + v, tokens.scale * sum);
  }
}

void write_zero_out(const Problem& problem, const TokenInputs& tokens, int64_t begin, int64_t end) {
  if (planted(Fault::null_out_not_written)) return;
  for (int64_t token = begin; token < end; ++token)
    for (int hv = 0; hv < problem.value_heads; ++hv)
      for (int v = 0; v < problem.value_dim; ++v)
        store(tokens.out.dtype, tokens.out.data, token * tokens.out.token_stride + hv * tokens.out.head_stride + v, 0);
}

}  // namespace kda::reference
