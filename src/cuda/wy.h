// Fast verify in the WY form: which kernel serves a problem. One instantiation per pool dtype, each in its own source.
#pragma once

#include "cuda/device/wy_tuned.cuh"
#include "cuda/host.h"
#include "cuda/verify_args.h"

namespace kda::cuda {

Status launch_wy_fp32(const Problem& p, WyArgs& args, const Execution& execution);
Status launch_wy_bf16(const Problem& p, WyArgs& args, const Execution& execution);

// The tuned kernels, where they can serve the call: false = they cannot.
bool launch_wy_tuned_fp32(const Problem& p, const SequenceArgs& args, const Execution& execution, Status& status);
bool launch_wy_tuned_bf16(const Problem& p, const SequenceArgs& args, const Execution& execution, Status& status);

// Up to this many units (rows times value heads of the plan) a block takes 32 rows of a head of 128 channels, so that
// more multiprocessors share the work.
constexpr int64_t kFewUnits = 66;

// The arguments of the tuned kernels; false if one of them does not fit.
inline bool tuned_args(const SequenceArgs& s, WyTunedArgs& t) {
  bool fits = true;
  const auto narrow = [&](int64_t x) {
    fits = fits && x == static_cast<int32_t>(x);
    return static_cast<int>(x);
  };
  const auto tokens = [&](const TokenView& v) {
    return WyTokens{v.data, narrow(2 * v.token_stride), narrow(2 * v.head_stride)};
  };
  const auto indices = [&](const IndexView& v) {
    const int64_t bytes = v.wide ? 8 : 4;
    return WyIndices{static_cast<const std::byte*>(v.data), narrow(v.stride * bytes), narrow(v.column_stride * bytes),
                     v.wide};
  };
  t.q = tokens(s.tokens.q), t.k = tokens(s.tokens.k), t.v = tokens(s.tokens.v);
  t.a = tokens(s.tokens.a), t.b = tokens(s.tokens.b), t.out = tokens(s.tokens.out);
  t.A_log = reinterpret_cast<const float*>(s.tokens.A_log.data);
  t.dt_bias = reinterpret_cast<const float*>(s.tokens.dt_bias.data);
  t.scale = s.tokens.scale, t.lower_bound = s.tokens.lower_bound;
  t.cu_seqlens = indices(s.rows.cu_seqlens), t.slots = indices(s.rows.slots), t.dst_slots = indices(s.rows.dst_slots);
  t.parents = indices(s.draft.parents), t.record_rows = indices(s.record_rows);
  t.tips = indices(s.pending.tips), t.pending_rows = indices(s.pending.record_rows);
  t.has_state = s.rows.has_state;
  t.parents_by_row = s.draft.by_row;
  t.tokens = s.rows.tokens;
  t.state = s.state, t.dst = s.dst, t.records = s.records;
  t.layout = s.record_layout;
  t.form = s.form;
  t.node_bytes = narrow(s.record_layout.node_bytes);
  t.status = s.status;
  narrow(s.rows.tokens);
  return fits && s.rows.cu_seqlens.present();
}

template <class T, int KP, int NT, int Rows, bool Pending>
bool launch_wy_tuned_as(const Problem& p, const SequenceArgs& s, const Execution& execution, Status& status) {
  using Shared = WyTunedShared<T, KP, NT, Rows, Pending>;
  WyTunedArgs t{};
  int device = 0;
  if (!is_fixed_bf16(p, s.tokens, Rows) || !tuned_args(s, t) || cudaGetDevice(&device) != cudaSuccess ||
      Shared::kBytes > cuda_shared_memory_limit(device)) {
    return false;
  }
  t.splits = p.value_dim / Rows;
  status = launch<wy_tuned_kernel<T, KP, NT, Rows, Pending>, true>(int64_t{p.value_heads} * t.splits, s.rows.count,
                                                                   Shared::kThreads, Shared::kBytes, execution, t);
  return true;
}

template <class T, bool Pending>
bool launch_wy_tuned_for(const Problem& p, const SequenceArgs& s, const Execution& execution, Status& status) {
  if (p.key_dim == 64) return launch_wy_tuned_as<T, 64, 16, 64, Pending>(p, s, execution, status);
  if (p.max_nodes > 8) return launch_wy_tuned_as<T, 128, 16, 128, Pending>(p, s, execution, status);
  if (p.max_rows * p.value_heads > kFewUnits) {
    return launch_wy_tuned_as<T, 128, 8, 128, Pending>(p, s, execution, status);
  }
  return launch_wy_tuned_as<T, 128, 8, 32, Pending>(p, s, execution, status);
}

// Tuned kernels count rows in the grid's y dimension.
constexpr int64_t kMaxTunedRows = 65535;

template <class T>
bool launch_wy_tuned(const Problem& p, const SequenceArgs& s, const Execution& execution, Status& status) {
  const bool plain = p.state_layout == StateLayout::vk && !s.snapshots.rows.present() && s.node_states == nullptr &&
                     !s.node_slots.present() && s.dst.dtype == p.state && is_aligned(s.state) && is_aligned(s.dst) &&
                     s.form.fp16_decay && is_aligned_bf16(s.tokens.out) && p.max_rows <= kMaxTunedRows &&
                     (p.key_dim == 64 || p.key_dim == 128);
  if (!plain) return false;
  return s.pending.present() ? launch_wy_tuned_for<T, true>(p, s, execution, status)
                             : launch_wy_tuned_for<T, false>(p, s, execution, status);
}

template <class T, int KP, int W>
Status launch_wy_as(const Problem& p, WyArgs& args, const Execution& execution) {
  using Shared = WyShared<KP, W, MmaTile<T, KP, true>::Vec>;
  args.s.splits = (p.value_dim + Shared::kBlockRows - 1) / Shared::kBlockRows;
  return launch<wy_kernel<T, KP, W, AnyIo>, true>(args.s.rows.count * p.value_heads * args.s.splits, 1,
                                                  Shared::kThreads, Shared::kBytes, execution, args);
}

// The general kernels; both give the same bits.
template <class T>
Status launch_wy(const Problem& p, WyArgs& args, const Execution& execution) {
  args.kv = p.state_layout == StateLayout::kv;
  if (padded_key_dim(p.key_dim) <= 128) return launch_wy_as<T, 128, 4>(p, args, execution);
  return launch_wy_as<T, 256, 4>(p, args, execution);
}

}  // namespace kda::cuda
