// Fast verify in the WY form: one instantiation per pool dtype, each in its own source.
#pragma once

#include "cuda/device/wy.cuh"
#include "cuda/host.h"
#include "cuda/verify_args.h"

namespace kda::cuda {

Status launch_wy_fp32(const Problem& p, WyArgs& args, const Execution& execution);
Status launch_wy_bf16(const Problem& p, WyArgs& args, const Execution& execution);

template <class T, int KP, int W, class Io>
Status launch_wy_as(const Problem& p, WyArgs& args, const Execution& execution) {
  using Shared = WyShared<KP, W, MmaTile<T, KP, !Io::kFixed>::Vec>;
  args.s.splits = (p.value_dim + Shared::kBlockRows - 1) / Shared::kBlockRows;
  return launch<wy_kernel<T, KP, W, Io>, true>(args.s.rows.count * p.value_heads * args.s.splits, 1, Shared::kThreads,
                                               Shared::kBytes, execution, args);
}

// Every instantiation that can serve a problem gives the same bits; the plan's maxima and the tensors' alignment
// choose.
template <class T>
Status launch_wy(const Problem& p, WyArgs& args, const Execution& execution) {
  const SequenceArgs& s = args.s;
  const int padded = padded_key_dim(p.key_dim);
  args.kv = p.state_layout == StateLayout::kv;
  const bool plain = !args.kv && !s.snapshots.rows.present() && s.node_states == nullptr && !s.node_slots.present() &&
                     s.dst.dtype == p.state && (!s.state.present() || is_aligned(s.state)) &&
                     (!s.dst.present() || is_aligned(s.dst));
  using Tuned = FixedIo<DType::bf16>;
  if (plain && padded == 128 && is_fixed_bf16(p, s.tokens, 128)) {
    return launch_wy_as<T, 128, 8, Tuned>(p, args, execution);
  }
  if (plain && padded == 64 && is_fixed_bf16(p, s.tokens, 64)) return launch_wy_as<T, 64, 4, Tuned>(p, args, execution);
  if (padded <= 128) return launch_wy_as<T, 128, 4, AnyIo>(p, args, execution);
  return launch_wy_as<T, 256, 4, AnyIo>(p, args, execution);
}

}  // namespace kda::cuda
