// Small fixed calls for the named recipes.
#pragma once

#include "parity/walk.h"

namespace parity {

inline Rows rows_of(const std::vector<int64_t>& lengths, const std::vector<int64_t>& slots, const Tensor& pool,
                    int64_t first = 0) {
  Rows rows;
  rows.cu = cut(lengths, first);
  rows.slots = slots;
  rows.state = pool;
  Random r(1);
  rows.pack(r);
  return rows;
}

inline bool extend(const Plan& plan, const Spec& spec, const TokenTensors& t, const Rows& rows,
                   const Snapshots& snapshots = {}) {
  kda_extend_args args{};
  args.struct_size = sizeof(args);
  args.tokens = abi_tokens(spec, t);
  args.rows = rows.abi();
  args.snapshots = snapshots.abi();
  return plan.extend(args);
}

inline bool decode(const Plan& plan, const Spec& spec, const TokenTensors& t, const Rows& rows) {
  kda_decode_args args{};
  args.struct_size = sizeof(args);
  args.tokens = abi_tokens(spec, t);
  args.rows = rows.abi();
  return plan.decode(args);
}

inline bool verify(const Plan& plan, const Spec& spec, const TokenTensors& t, const Rows& rows, const Tensor& parents,
                   const Tensor& records, const Tensor& node_states = {}) {
  kda_verify_args args{};
  args.struct_size = sizeof(args);
  args.tokens = abi_tokens(spec, t);
  args.rows = rows.abi();
  args.parents = parents.dl();
  args.records = records.dl();
  args.node_states = node_states.dl();
  return plan.verify(args);
}

inline kda_commit_args commit_args(const Rows& rows, const Tensor& tips, const Tensor& records,
                                   const Snapshots& snapshots = {}) {
  kda_commit_args args{};
  args.struct_size = sizeof(args);
  args.rows = rows.abi();
  args.rows.cu_seqlens = nullptr;
  args.tips = tips.dl();
  args.records = records.dl();
  args.snapshots = snapshots.abi();
  return args;
}

inline bool commit(const Plan& plan, const Rows& rows, const std::vector<int64_t>& tips, const Tensor& records,
                   const Snapshots& snapshots = {}) {
  const Tensor tips_t = Tensor::of(Type::i32, tips);
  return plan.commit(commit_args(rows, tips_t, records, snapshots));
}

// The scalar embedding: q = k = e0, decay 0.5 and step 0.5 on all channels, v the same in all V. Then S[v][0] obeys
// s' = 0.25 s + 0.5 v and out = s'. Every value is dyadic.
inline Spec scalar_spec() {
  Spec s;
#if KDA_WITH_CUDA
  s.form.K = s.form.V = 16;  // the least that CUDA serves
#else
  s.form.K = s.form.V = 4;
#endif
  s.form.gate = judge::Gate::precomputed;
  s.form.beta = judge::Beta::none;
  s.form.l2norm = false;
  s.form.scale = 1;
  return s;
}

// Token i has value v[i], decay alpha[i] and step beta[i] (the last entry repeats).
inline TokenTensors scalar_tokens(const Spec& spec, const std::vector<double>& v,
                                  const std::vector<double>& alpha = {0.5}, const std::vector<double>& beta = {0.5}) {
  const judge::Form& f = spec.form;
  TokenTensors t;
  t.count = int64_t(v.size());
  t.q = Tensor(spec.io, {t.count, f.H, f.K});
  t.k = Tensor(spec.io, {t.count, f.H, f.K});
  t.v = Tensor(spec.io, {t.count, f.HV, f.V});
  t.a = Tensor(spec.gate_type, {t.count, f.HV, f.K});
  t.b = Tensor(spec.beta_type, {t.count, f.HV});
  t.out = Tensor(spec.io, {t.count, f.HV, f.V});
  for (int64_t i = 0; i < t.count; ++i) {
    for (int64_t h = 0; h < f.H; ++h)
      for (int64_t c = 0; c < f.K; ++c) {
        t.q.set(c == 0, i, h, c);
        t.k.set(c == 0, i, h, c);
      }
    for (int64_t h = 0; h < f.HV; ++h) {
      for (int64_t c = 0; c < f.V; ++c) t.v.set(v[size_t(i)], i, h, c);
      for (int64_t c = 0; c < f.K; ++c) t.a.set(std::log(alpha[std::min(size_t(i), alpha.size() - 1)]), i, h, c);
      t.b.set(beta[std::min(size_t(i), beta.size() - 1)], i, h);
    }
  }
  judge::read_values(&t);
  return t;
}

inline Tensor constant_pool(const Spec& spec, int64_t slots, double value, int64_t gap = 0) {
  const Tensor pool = judge::make_pool(spec, spec.state, slots, gap);
  for (int64_t s = 0; s < slots; ++s) judge::for_each_element(pool, s, [&](int64_t at) { pool.store(at, value); });
  return pool;
}

inline void set_slot(const Tensor& pool, int64_t slot, double value) {
  judge::for_each_element(pool, slot, [&](int64_t at) { pool.store(at, value); });
}

// S[0][0] of a slot: the s of the scalar embedding.
inline double scalar(const Spec& spec, const Tensor& pool, int64_t slot) {
  return judge::read_state(spec, pool, slot)[0];
}

inline Tensor packed_parents(const std::vector<int64_t>& parents) { return Tensor::of(Type::i32, parents); }

}  // namespace parity
