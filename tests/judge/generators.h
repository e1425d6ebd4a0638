// Random problems that are not tame: gates from fully open to fully closed, correlated keys, ragged and empty rows,
// null and fresh rows, strided inputs, any slot stride, forests, and NaN wherever nothing may be read.
#pragma once

#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "judge/judge.h"
#include "judge/limits.h"
#include "judge/tensor.h"

namespace judge {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  double normal() { return std::normal_distribution<double>()(engine_); }
  int in(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }  // both included
  bool chance(double p) { return std::uniform_real_distribution<double>()(engine_) < p; }
  template <class T>
  T pick(const std::vector<T>& from) {
    return from[size_t(in(0, int(from.size()) - 1))];
  }
  // [0, n) shuffled
  std::vector<int64_t> permutation(int64_t n) {
    std::vector<int64_t> p(static_cast<size_t>(n));
    std::iota(p.begin(), p.end(), 0);
    std::shuffle(p.begin(), p.end(), engine_);
    return p;
  }

 private:
  std::mt19937_64 engine_;
};

constexpr Io io_of(Type t) { return t == Type::f32 ? Io::fp32 : t == Type::bf16 ? Io::bf16 : Io::fp16; }

// One geometry with its types; all that a plan fixes and the judge needs.
struct Spec {
  Form form;
  Type io = Type::f32, gate_type = Type::f32, beta_type = Type::f32, parameter_type = Type::f32;
  Type state = Type::f32;
  bool kv = false;  // state layout
  bool with_A_log = true, with_dt_bias = true;
  int conv_width = 4;
  Type conv_state = Type::f32, conv_weight = Type::f32;
  bool channel_major = false;  // conv layout [slots, C, W-1]

  int64_t channels() const { return 2 * int64_t(form.H) * form.K + int64_t(form.HV) * form.V; }
  bool fast = false;  // numerics of verify and commit
  // Above 0: plans of so many draft nodes, and calls in the plainest form, which tuned kernels take: compact and
  // aligned tensors, one state dtype, no node states, no snapshots beside a pending commit.
  int plain_nodes = 0;
  bool rounds() const { return state == Type::bf16 && !fast; }
  std::string text() const {
    auto name = [](Type t) { return t == Type::f32 ? "fp32" : t == Type::bf16 ? "bf16" : "fp16"; };
    return std::string("H=") + std::to_string(form.H) + " HV=" + std::to_string(form.HV) +
           " K=" + std::to_string(form.K) + " V=" + std::to_string(form.V) + " gate=" + std::to_string(int(form.gate)) +
           " beta=" + std::to_string(int(form.beta)) + " l2norm=" + std::to_string(form.l2norm) + " io=" + name(io) +
           " a=" + name(gate_type) + " b=" + name(beta_type) + " state=" + name(state) + (kv ? " kv" : " vk") +
           " W=" + std::to_string(conv_width) + " conv_state=" + name(conv_state) + (channel_major ? " cw" : " wc") +
           (fast ? " fast" : "") + (plain_nodes > 0 ? " plain nodes=" + std::to_string(plain_nodes) : "");
  }
};

struct TokenTensors {
  Tensor q, k, v, a, b, A_log, dt_bias, out;
  Tokens values;  // what the tensors hold, for the judge
  int64_t count = 0;
};

inline std::vector<double> flatten(const Tensor& t) {
  std::vector<double> values;
  if (!t.present()) return values;
  if (t.shape().size() == 1)
    for (int64_t i = 0; i < t.size(0); ++i) values.push_back(t.at(i));
  if (t.shape().size() == 2)
    for (int64_t i = 0; i < t.size(0); ++i)
      for (int64_t j = 0; j < t.size(1); ++j) values.push_back(t.at(i, j));
  if (t.shape().size() == 3)
    for (int64_t i = 0; i < t.size(0); ++i)
      for (int64_t j = 0; j < t.size(1); ++j)
        for (int64_t l = 0; l < t.size(2); ++l) values.push_back(t.at(i, j, l));
  return values;
}

inline void read_values(TokenTensors* t) {
  t->values = {flatten(t->q), flatten(t->k),     flatten(t->v),      flatten(t->a),
               flatten(t->b), flatten(t->A_log), flatten(t->dt_bias)};
}

// A raw gate value: mostly ordinary, sometimes fully open or fully closed.
inline double random_gate(Random& r, const Form& f) {
  if (f.gate == Gate::precomputed) {
    switch (r.in(0, 7)) {
      case 0:
        return 0;
      case 1:
        return -1000;
      case 2:
        return -std::numeric_limits<double>::infinity();
      case 3:
        return -8 * std::fabs(r.normal());
      default:
        return -0.3 * std::fabs(r.normal());
    }
  }
  switch (r.in(0, 7)) {
    case 0:
      return -40;
    case 1:
      return 40;
    case 2:
      return 8 * r.normal();
    default:
      return r.normal() - 2;
  }
}

// T tokens. q leans towards k and keys towards each other, so that sums over K do not cancel to nothing and the delta
// rule has something to correct. `strided`: slices of one packed q|k|v row, padded gates, transposed steps.
inline TokenTensors random_tokens(Random& r, const Spec& spec, int64_t T, bool strided = true) {
  const Form& f = spec.form;
  const int64_t H = f.H, HV = f.HV, K = f.K, V = f.V;
  TokenTensors t;
  t.count = T;
  if (strided) {
    const int64_t row = spec.channels() + r.in(0, 5);
    const Tensor packed(spec.io, {T, row});
    t.q = packed.view({T, H, K}, {row, K, 1}, 0);
    t.k = packed.view({T, H, K}, {row, K, 1}, H * K);
    t.v = packed.view({T, HV, V}, {row, V, 1}, 2 * H * K);
    t.a = Tensor(spec.gate_type, {T, HV, K}, {HV * (K + 3) + 1, K + 3, 1});
    t.b = Tensor(spec.beta_type, {T, HV}, {1, T + 2});
    t.out = Tensor(spec.io, {T, HV, V}, {HV * (V + 1) + 2, V + 1, 1});
  } else {
    t.q = Tensor(spec.io, {T, H, K});
    t.k = Tensor(spec.io, {T, H, K});
    t.v = Tensor(spec.io, {T, HV, V});
    t.a = r.chance(0.5) ? Tensor(spec.gate_type, {T, HV, K})
                        : Tensor(spec.gate_type, {T, HV, K}).view({T, HV * K}, {HV * K, 1}, 0);
    t.b = Tensor(spec.beta_type, {T, HV});
    t.out = Tensor(spec.io, {T, HV, V});
  }
  const bool needs_A_log = f.gate == Gate::softplus || (f.gate == Gate::bounded && spec.with_A_log);
  if (needs_A_log) {
    t.A_log = Tensor(spec.parameter_type, {HV});
    for (int64_t i = 0; i < HV; ++i) t.A_log.set(f.gate == Gate::softplus ? 0.7 * r.normal() : 0.3 * r.normal(), i);
  }
  if (spec.with_dt_bias && f.gate != Gate::precomputed) {
    t.dt_bias = Tensor(spec.parameter_type, {HV * K});
    for (int64_t i = 0; i < HV * K; ++i) t.dt_bias.set(r.normal(), i);
  }
  std::vector<double> common(static_cast<size_t>(H * K));
  for (double& c : common) c = r.normal();
  for (int64_t i = 0; i < T; ++i) {
    for (int64_t h = 0; h < H; ++h) {
      std::vector<double> key(static_cast<size_t>(K));
      double squares = 0;
      for (int64_t c = 0; c < K; ++c) {
        key[size_t(c)] = 0.6 * common[size_t(h * K + c)] + 0.8 * r.normal();
        squares += key[size_t(c)] * key[size_t(c)];
      }
      // Without the norm a long key times a large step would make the recurrence explode: come at unit length.
      const double length = f.l2norm ? 1 : 1 / std::sqrt(squares + 1e-6);
      for (int64_t c = 0; c < K; ++c) {
        t.k.set(length * key[size_t(c)], i, h, c);
        t.q.set(length * (key[size_t(c)] + 0.7 * r.normal()), i, h, c);
      }
    }
    for (int64_t h = 0; h < HV; ++h) {
      for (int64_t c = 0; c < V; ++c) t.v.set(r.normal(), i, h, c);
      const bool one = r.chance(0.1);
      t.b.set(f.beta == Beta::none ? (one ? 1 : 0.5 + 0.3 * std::tanh(r.normal())) : (one ? 6 : 2 * r.normal()), i, h);
      for (int64_t c = 0; c < K; ++c)
        t.a.store(i * t.a.strides()[0] + (t.a.shape().size() == 3 ? t.a.index(0, h, c) : h * K + c), random_gate(r, f));
    }
  }
  read_values(&t);
  return t;
}

// A draft of n nodes: chain, star, tree or forest.
inline std::vector<int> random_parents(Random& r, int n) {
  std::vector<int> parents(static_cast<size_t>(n));
  const int kind = r.in(0, 3);
  for (int i = 0; i < n; ++i) {
    switch (kind) {
      case 0:
        parents[i] = i - 1;
        break;
      case 1:
        parents[i] = i == 0 ? -1 : 0;
        break;
      case 2:
        parents[i] = i == 0 ? -1 : r.in(std::max(0, i - 4), i - 1);
        break;
      default:
        parents[i] = r.in(-1, i - 1);
        break;
    }
  }
  return parents;
}

// A state pool [slots, HV, V, K] (vk) or [slots, HV, K, V] (kv) whose slot stride has a gap. All NaN.
inline Tensor make_pool(const Spec& spec, Type type, int64_t slots, int64_t gap) {
  const int64_t HV = spec.form.HV, K = spec.form.K, V = spec.form.V;
  const int64_t rows = spec.kv ? K : V, columns = spec.kv ? V : K;
  return Tensor(type, {slots, HV, rows, columns}, {HV * V * K + gap, V * K, columns, 1});
}

inline State read_state(const Spec& spec, const Tensor& pool, int64_t slot) {
  const Form& f = spec.form;
  State s;
  for (int h = 0; h < f.HV; ++h)
    for (int v = 0; v < f.V; ++v)
      for (int k = 0; k < f.K; ++k) s.push_back(spec.kv ? pool.at(slot, h, k, v) : pool.at(slot, h, v, k));
  return s;
}

inline void fill_slot(Random& r, const Spec& spec, const Tensor& pool, int64_t slot) {
  for (int64_t i = 0; i < int64_t(spec.form.HV) * spec.form.V * spec.form.K; ++i)
    pool.store(slot * pool.strides()[0] + i, r.normal());
}

// A conv pool, all NaN. Indexed (slot, window, channel) or (slot, channel, window).
inline Tensor make_conv_pool(const Spec& spec, Type type, int64_t channels, int64_t slots, int64_t gap) {
  const int64_t W1 = spec.conv_width - 1;
  return spec.channel_major ? Tensor(type, {slots, channels, W1}, {channels * W1 + gap, W1, 1})
                            : Tensor(type, {slots, W1, channels}, {channels * W1 + gap, channels, 1});
}

// [channel][window]
inline std::vector<double> read_window(const Spec& spec, const Tensor& pool, int64_t slot, int64_t channel) {
  std::vector<double> w;
  for (int i = 0; i < spec.conv_width - 1; ++i)
    w.push_back(spec.channel_major ? pool.at(slot, channel, i) : pool.at(slot, i, channel));
  return w;
}

inline void fill_window(Random& r, const Tensor& pool, int64_t slot) {
  for (int64_t i = 0; i < pool.size(1) * pool.size(2); ++i) pool.store(slot * pool.strides()[0] + i, r.normal());
}

// Calls visit(element index) for every element of one slot of a pool of any shape and strides.
template <class Visit>
void for_each_element(const Tensor& pool, int64_t slot, const Visit& visit) {
  int64_t elements = 1;
  for (size_t d = 1; d < pool.shape().size(); ++d) elements *= pool.size(int(d));
  for (int64_t e = 0; e < elements; ++e) {
    int64_t rest = e, at = slot * pool.strides()[0];
    for (size_t d = pool.shape().size() - 1; d >= 1; --d) {
      at += rest % pool.size(int(d)) * pool.strides()[d];
      rest /= pool.size(int(d));
    }
    visit(at);
  }
}

// True if `after` equals `before` in every byte outside the named slots, gaps included. Both are clones of one tensor.
inline bool only_slots_changed(const Tensor& before, const Tensor& after, const std::vector<int64_t>& slots) {
  const Tensor masked = after.clone();
  const size_t bytes = size_t(bytes_of(after.type()));
  for (int64_t slot : slots)
    for_each_element(before, slot, [&](int64_t at) {
      std::memcpy(masked.data() + at * int64_t(bytes), before.data() + at * int64_t(bytes), bytes);
    });
  return masked.storage() == before.storage();
}

// The bits of one slot, for exact comparisons.
inline std::vector<std::byte> slot_bits(const Tensor& pool, int64_t slot) {
  std::vector<std::byte> bits;
  const int64_t bytes = bytes_of(pool.type());
  for_each_element(pool, slot, [&](int64_t at) {
    bits.insert(bits.end(), pool.data() + at * bytes, pool.data() + (at + 1) * bytes);
  });
  return bits;
}

}  // namespace judge
