// The judge: Kimi Delta Attention in plain float64 loops. It shares nothing with src/, not even headers, and takes no
// short cuts: a path of tokens is walked one by one, all state elements in double. The only rounding is the one that
// callers ask for where the contract stores a state to a bf16 pool.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace judge {

enum class Gate { softplus, bounded, precomputed };
enum class Beta { sigmoid, sigmoid2, none };

struct Form {
  int H = 1, HV = 1, K = 1, V = 1;
  Gate gate = Gate::softplus;
  Beta beta = Beta::sigmoid;
  bool l2norm = true;
  double scale = 0;  // 0 = K^-0.5
  double lower_bound = -5;
};

// One layer's inputs as double, compact: q, k [T, H, K], v [T, HV, V], a [T, HV, K], b [T, HV], A_log [HV],
// dt_bias [HV, K]. Empty A_log or dt_bias = absent.
struct Tokens {
  std::vector<double> q, k, v, a, b, A_log, dt_bias;
};

using State = std::vector<double>;  // [HV, V, K]

inline State zero_state(const Form& f) { return State(static_cast<size_t>(f.HV) * f.V * f.K, 0.0); }

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double silu(double x) { return x * sigmoid(x); }

inline double log_decay(const Form& f, const Tokens& in, int64_t t, int hv, int c) {
  const double a = in.a[(t * f.HV + hv) * f.K + c];
  if (f.gate == Gate::precomputed) return a;
  const double x = a + (in.dt_bias.empty() ? 0 : in.dt_bias[hv * f.K + c]);
  const double rate = in.A_log.empty() ? 1 : std::exp(in.A_log[hv]);
  if (f.gate == Gate::bounded) return f.lower_bound * sigmoid(rate * x);
  return -rate * (x > 20 ? x : std::log1p(std::exp(x)));
}

inline double step_size(const Form& f, double b) {
  return f.beta == Beta::none ? b : (f.beta == Beta::sigmoid2 ? 2 : 1) * sigmoid(b);
}

inline std::vector<double> unit_vector(const Form& f, const std::vector<double>& x, int64_t t, int h) {
  std::vector<double> r(x.begin() + (t * f.H + h) * f.K, x.begin() + (t * f.H + h + 1) * f.K);
  if (!f.l2norm) return r;
  double sum = 0;
  for (double e : r) sum += e * e;
  for (double& e : r) e /= std::sqrt(sum + 1e-6);
  return r;
}

// One token on all value heads: updates the state and returns out [HV, V].
inline std::vector<double> advance(const Form& f, const Tokens& in, int64_t t, State* state) {
  const double scale = f.scale == 0 ? 1 / std::sqrt(double(f.K)) : f.scale;
  std::vector<double> out(static_cast<size_t>(f.HV) * f.V);
  for (int hv = 0; hv < f.HV; ++hv) {
    const int h = hv / (f.HV / f.H);
    const std::vector<double> q = unit_vector(f, in.q, t, h), k = unit_vector(f, in.k, t, h);
    const double beta = step_size(f, in.b[t * f.HV + hv]);
    std::vector<double> decay(f.K);
    for (int c = 0; c < f.K; ++c) decay[c] = std::exp(log_decay(f, in, t, hv, c));
    for (int v = 0; v < f.V; ++v) {
      double* s = state->data() + (static_cast<size_t>(hv) * f.V + v) * f.K;
      double predicted = 0, read = 0;
      for (int c = 0; c < f.K; ++c) s[c] *= decay[c];
      for (int c = 0; c < f.K; ++c) predicted += s[c] * k[c];
      const double u = beta * (in.v[(t * f.HV + hv) * f.V + v] - predicted);
      for (int c = 0; c < f.K; ++c) s[c] += u * k[c];
      for (int c = 0; c < f.K; ++c) read += s[c] * q[c];
      out[static_cast<size_t>(hv) * f.V + v] = scale * read;
    }
  }
  return out;
}

// Nearest bf16 value (8 significant bits), ties to even. Values here are far from bf16's limits.
inline double round_bf16(double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = 0;
  std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(x, 8 - exponent)), exponent - 8);
}

inline void round_bf16(State* state) {
  for (double& s : *state) s = round_bf16(s);
}

// Every node of a tree: its output and the state after it. `rounds` = the pool is bf16, so a child starts from the
// rounded state of its parent; the states returned are before that rounding.
struct Tree {
  std::vector<std::vector<double>> out;  // [nodes][HV, V]
  std::vector<State> states;             // [nodes]
};

inline Tree walk_tree(const Form& f, const Tokens& in, int64_t first, const std::vector<int>& parents,
                      const State& committed, bool rounds) {
  Tree tree;
  for (size_t i = 0; i < parents.size(); ++i) {
    State s = parents[i] < 0 ? committed : tree.states[parents[i]];
    if (rounds && parents[i] >= 0) round_bf16(&s);
    tree.out.push_back(advance(f, in, first + static_cast<int64_t>(i), &s));
    tree.states.push_back(s);
  }
  return tree;
}

// Root -> node.
inline std::vector<int> path_to(const std::vector<int>& parents, int node) {
  std::vector<int> path;
  for (; node >= 0; node = parents[node]) path.insert(path.begin(), node);
  return path;
}

inline int depth_of(const std::vector<int>& parents) {
  int depth = 0;
  for (int i = 0; i < int(parents.size()); ++i) depth = std::max(depth, int(path_to(parents, i).size()));
  return depth;
}

// One output of the convolution of width W = weight.size(): inputs are the W newest, oldest first.
inline double conv(const std::vector<double>& weight, double bias, const std::vector<double>& inputs) {
  double sum = 0;
  for (size_t w = 0; w < weight.size(); ++w) sum += weight[w] * inputs[w];
  return silu(sum + bias);
}

}  // namespace judge
