// The two kinds of attention layer: Kimi Delta Attention through libkda, and MLA without rotary positions.
#include <algorithm>
#include <cmath>

#include "model/model_impl.h"
#include "model/ops.h"
#include "model/scratch.h"

namespace kda::model {
namespace {

constexpr int64_t kRowsAPiece = 16;

template <class Body>
void for_rows(const Threads& threads, int64_t rows, const Body& body) {
  threads.parallel_for((rows + kRowsAPiece - 1) / kRowsAPiece, [&](int64_t piece) {
    const int64_t end = std::min(rows, (piece + 1) * kRowsAPiece);
    for (int64_t r = piece * kRowsAPiece; r < end; ++r) body(r);
  });
}

}  // namespace

// s.stream += KDA(s.normed). `layer` counts KDA layers.
void Session::Impl::kda_layer(const KdaWeights& w, int layer, Pass pass, int64_t rows) {
  const Config& c = m.config;
  const int64_t heads = c.kda_heads, dim = c.kda_head_dim, all = heads * dim, channels = 3 * all;
  const int64_t hidden = c.hidden_size;
  const float* x = s.normed.data();
  float* qkv = at_least(&s.qkv, rows * channels);
  float* conv_out = at_least(&s.conv_out, rows * channels);
  float* decay = at_least(&s.decay, rows * all);
  float* gate = at_least(&s.gate, rows * all);
  float* beta = at_least(&s.beta, rows * heads);
  float* f_a = at_least(&s.f_a, rows * dim);
  float* g_a = at_least(&s.g_a, rows * dim);
  float* out = at_least(&s.kda_out, rows * all);

  const Product from_x[] = {
      {x, hidden, rows, w.q, qkv, channels},
      {x, hidden, rows, w.k, qkv + all, channels},
      {x, hidden, rows, w.v, qkv + 2 * all, channels},
      {x, hidden, rows, w.f_a, f_a, dim},
      {x, hidden, rows, w.b, beta, heads},
      c.full_rank_gate ? Product{x, hidden, rows, w.g_b, gate, all} : Product{x, hidden, rows, w.g_a, g_a, dim},
  };
  run_products(m.threads, from_x);

  const Tensor slots(slot_index.data(), Element::int32, {1});
  const Tensor cu(cu_seqlens.data(), Element::int32, {2});
  const Tensor windows = pool.conv_state(layer), conv_records = pool.conv_records(layer);
  const Tensor conv_x(qkv, KDA_FP32, {rows, channels}), conv_y(conv_out, KDA_FP32, {rows, channels});
  const Tensor conv_weight(w.conv.data(), KDA_FP32, {channels, c.conv_width});
  const Tensor draft(parents.data(), Element::int32, {rows});
  const Tensor record_rows(record_row.data(), Element::int32, {1});
  const Tensor tips(pending_tip.data(), Element::int32, {1});
  const Tensor tip_rows(pending_record_row.data(), Element::int32, {1});
  auto conv = args<kda_conv_args>();
  conv.x = conv_x;
  conv.weight = conv_weight;
  conv.out = conv_y;
  conv.rows.slots = slots;
  conv.rows.state = windows;
  if (pass != Pass::decode) conv.rows.cu_seqlens = cu;
  if (pass == Pass::verify) {
    conv.parents = draft;
    conv.records = conv_records;
    conv.record_rows = record_rows;
    if (has_pending) {
      conv.pending_tips = tips;
      conv.pending_record_rows = tip_rows;
    }
    m.plan.conv_verify(conv, &call);
  } else if (pass == Pass::decode) {
    m.plan.conv_decode(conv, &call);
  } else {
    m.plan.conv_extend(conv, &call);
  }

  const Product to_gates[] = {
      {f_a, dim, rows, w.f_b, decay, all},
      {g_a, dim, c.full_rank_gate ? 0 : rows, w.g_b, gate, all},
  };
  run_products(m.threads, to_gates);

  const Tensor state = pool.state(layer), records = pool.records(layer);
  const Tensor q(conv_out, KDA_FP32, {rows, heads, dim}, {channels, dim, 1});
  const Tensor k(conv_out + all, KDA_FP32, {rows, heads, dim}, {channels, dim, 1});
  const Tensor v(conv_out + 2 * all, KDA_FP32, {rows, heads, dim}, {channels, dim, 1});
  const Tensor a(decay, KDA_FP32, {rows, heads, dim}), b(beta, KDA_FP32, {rows, heads});
  const Tensor a_log(w.a_log.data(), KDA_FP32, {heads}), dt_bias(w.dt_bias.data(), KDA_FP32, {heads, dim});
  const Tensor result(out, KDA_FP32, {rows, heads, dim});
  const auto set_tokens = [&](kda_tokens& tokens, kda_rows& at) {
    tokens.q = q;
    tokens.k = k;
    tokens.v = v;
    tokens.a = a;
    tokens.b = b;
    tokens.A_log = a_log;
    tokens.dt_bias = dt_bias;
    tokens.out = result;
    if (c.bounded_gate) tokens.lower_bound = c.gate_lower_bound;
    at.slots = slots;
    at.state = state;
    if (pass != Pass::decode) at.cu_seqlens = cu;
  };
  if (pass == Pass::verify) {
    auto verify = args<kda_verify_args>();
    set_tokens(verify.tokens, verify.rows);
    verify.parents = draft;
    verify.records = records;
    verify.record_rows = record_rows;
    if (has_pending) {
      verify.pending_tips = tips;
      verify.pending_record_rows = tip_rows;
    }
    m.plan.verify(verify, &call);
  } else if (pass == Pass::decode) {
    auto decode = args<kda_decode_args>();
    set_tokens(decode.tokens, decode.rows);
    m.plan.decode(decode, &call);
  } else {
    auto extend = args<kda_extend_args>();
    set_tokens(extend.tokens, extend.rows);
    m.plan.extend(extend, &call);
  }

  for_rows(m.threads, rows, [&](int64_t r) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = r * all + h * dim;
      gated_rms_norm(out + at, w.o_norm.data(), gate + at, dim, static_cast<float>(c.rms_norm_eps), out + at);
    }
  });
  run_product(m.threads, {out, all, rows, w.o, s.stream.data(), hidden, /*accumulate=*/true});
}

// s.stream += MLA(s.normed), the rows' compressed keys appended to the layer's cache behind `length`. `layer` counts
// MLA layers.
void Session::Impl::mla_layer(const MlaWeights& w, int layer, int64_t rows) {
  const Config& c = m.config;
  const int64_t heads = c.mla_heads, nope = c.qk_nope_head_dim, rope = c.qk_rope_head_dim, lora = c.kv_lora_rank;
  const int64_t width = c.mla_cache_width(), query = nope + rope, value = c.v_head_dim, hidden = c.hidden_size;
  const float* x = s.normed.data();
  float* q = at_least(&s.mla_q, rows * heads * query);
  float* queries = at_least(&s.mla_queries, rows * heads * width);
  float* latent = at_least(&s.mla_latent, rows * heads * lora);
  float* out = at_least(&s.mla_out, rows * heads * value);
  std::vector<float>& cache = mla_caches[static_cast<size_t>(layer)];
  float* fresh = at_least(&cache, (length + rows) * width) + length * width;

  const Product from_x[] = {{x, hidden, rows, w.q, q, heads * query}, {x, hidden, rows, w.kv_a, fresh, width}};
  run_products(m.threads, from_x);

  // Keys are never expanded: each head's key matrix is applied to the query instead.
  static thread_local std::vector<Product> to_latent, to_values;  // no allocation a token
  to_latent.clear();
  to_values.clear();
  for (int64_t h = 0; h < heads; ++h) {
    const auto head = static_cast<size_t>(h);
    to_latent.push_back({q + h * query, heads * query, rows, w.keys[head], queries + h * width, heads * width});
    to_values.push_back({latent + h * lora, heads * lora, rows, w.values[head], out + h * value, heads * value});
  }
  run_products(m.threads, to_latent);
  for_rows(m.threads, rows, [&](int64_t r) {
    rms_norm(fresh + r * width, w.kv_a_norm.data(), lora, static_cast<float>(c.rms_norm_eps), fresh + r * width);
    for (int64_t h = 0; h < heads; ++h) {
      std::copy_n(q + (r * heads + h) * query + nope, rope, queries + (r * heads + h) * width + lora);
    }
  });
  run_attention(m.threads,
                {queries, rows, c.mla_heads, cache.data(), width, lora,
                 static_cast<float>(1 / std::sqrt(static_cast<double>(query))), length, s.path, s.path_begin, latent});
  run_products(m.threads, to_values);
  run_product(m.threads, {out, heads * value, rows, w.o, s.stream.data(), hidden, /*accumulate=*/true});
}

}  // namespace kda::model
