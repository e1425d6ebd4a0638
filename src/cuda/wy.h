// Fast verify in the WY form: which kernel serves a problem. One instantiation per pool dtype, each in its own source.
#pragma once

#include "cuda/device/wy_tuned.cuh"
#include "cuda/host.h"
#include "cuda/verify_args.h"

namespace kda::cuda {

Status launch_wy_fp32(const Problem& p, WyArgs& args, const Execution& execution);
Status launch_wy_bf16(const Problem& p, WyArgs& args, const Execution& execution);

// The tuned kernels, where they can serve the call: false = they cannot.
bool launch_wy_tuned_fp32(const Problem& p, WyArgs& args, const Execution& execution, Status& status);
bool launch_wy_tuned_bf16(const Problem& p, WyArgs& args, const Execution& execution, Status& status);

// Up to this many units (rows times value heads of the plan) a block takes 32 rows of a head of 128 channels, so that
// more multiprocessors share the work.
constexpr int64_t kFewUnits = 66;

template <class T, int KP, int NT, int Rows, bool Pending>
bool launch_wy_tuned_as(WyArgs& args, const Problem& p, const Execution& execution, Status& status) {
  using Shared = WyTunedShared<T, KP, NT, Rows, Pending>;
  if (!is_fixed_bf16(p, args.s.tokens, Rows)) return false;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || Shared::kBytes > cuda_shared_memory_limit(device)) return false;
  args.s.splits = p.value_dim / Rows;
  status = launch<wy_tuned_kernel<T, KP, NT, Rows, Pending>, true>(args.s.rows.count * p.value_heads * args.s.splits, 1,
                                                                   Shared::kThreads, Shared::kBytes, execution, args.s);
  return true;
}

template <class T, bool Pending>
bool launch_wy_tuned_for(WyArgs& args, const Problem& p, const Execution& execution, Status& status) {
  if (p.key_dim == 64) return launch_wy_tuned_as<T, 64, 16, 64, Pending>(args, p, execution, status);
  if (p.max_nodes > 8) return launch_wy_tuned_as<T, 128, 16, 128, Pending>(args, p, execution, status);
  if (p.max_rows * p.value_heads > kFewUnits) {
    return launch_wy_tuned_as<T, 128, 8, 128, Pending>(args, p, execution, status);
  }
  return launch_wy_tuned_as<T, 128, 8, 32, Pending>(args, p, execution, status);
}

template <class T>
bool launch_wy_tuned(const Problem& p, WyArgs& args, const Execution& execution, Status& status) {
  const SequenceArgs& s = args.s;
  const bool plain = p.state_layout == StateLayout::vk && !s.snapshots.rows.present() && s.node_states == nullptr &&
                     !s.node_slots.present() && s.dst.dtype == p.state && is_aligned(s.state) && is_aligned(s.dst) &&
                     s.form.fp16_decay && is_aligned_bf16(s.tokens.out) && (p.key_dim == 64 || p.key_dim == 128);
  if (!plain) return false;
  return s.pending.present() ? launch_wy_tuned_for<T, true>(args, p, execution, status)
                             : launch_wy_tuned_for<T, false>(args, p, execution, status);
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
