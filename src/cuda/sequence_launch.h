// Extend and verify by the exact recurrence: which instantiation serves a problem.
#pragma once

#include "cuda/device/sequence.cuh"
#include "cuda/host.h"

namespace kda::cuda {

// One instantiation per pool dtype; each lives in its own source to keep compilation parallel.
Status launch_sequence_fp32(const Problem& p, SequenceArgs& args, const Execution& execution);
Status launch_sequence_bf16(const Problem& p, SequenceArgs& args, const Execution& execution);

// From this many units on (rows times value heads of the plan) a block takes all rows of a head of 128 channels.
constexpr int64_t kManyUnits = 192;

template <class T, StateLayout Layout, int KP, int R, int W, class Io>
Status launch_sequence_as(const Problem& p, SequenceArgs& args, const Execution& execution) {
  using Shared = SequenceShared<KP, R, W>;
  args.splits = (p.value_dim + Shared::kBlockRows - 1) / Shared::kBlockRows;
  args.keep_initial = args.verify && args.draft.parents.present();
  const int64_t bytes = Shared::bytes(args.verify ? p.max_nodes : 0, args.keep_initial);
  return launch<sequence_kernel<T, Layout, KP, R, W, Io>, true>(args.rows.count * p.value_heads * args.splits, 1,
                                                                Shared::kThreads, bytes, execution, args);
}

template <class T>
Status launch_sequence(const Problem& p, SequenceArgs& args, const Execution& execution) {
  // Channels beyond K are zeros, which change no sum: a kernel of more channels gives the same bits.
  const int padded = padded_key_dim(p.key_dim);
  if (p.state_layout == StateLayout::kv) {
    if (padded <= 128) return launch_sequence_as<T, StateLayout::kv, 128, 4, 4, AnyIo>(p, args, execution);
    return launch_sequence_as<T, StateLayout::kv, 256, 4, 4, AnyIo>(p, args, execution);
  }
  const bool plain = !args.snapshots.rows.present() && args.node_states == nullptr && !args.node_slots.present() &&
                     args.dst.dtype == p.state && (!args.state.present() || is_aligned(args.state)) &&
                     (!args.dst.present() || is_aligned(args.dst));
  using Tuned = FixedIo<DType::bf16>;
  if (plain && padded == 64 && is_fixed_bf16(p, args.tokens, SequenceShared<64, 4, 4>::kBlockRows)) {
    return launch_sequence_as<T, StateLayout::vk, 64, 4, 4, Tuned>(p, args, execution);
  }
  if (plain && padded == 128 && is_fixed_bf16(p, args.tokens, SequenceShared<128, 4, 8>::kBlockRows)) {
    // the wide form keeps a whole head's initial state in shared memory, which smaller GPUs do not have
    int device = 0;
    const int64_t shared = SequenceShared<128, 4, 8>::bytes(args.verify ? p.max_nodes : 0, args.verify);
    const bool fits = cudaGetDevice(&device) == cudaSuccess &&
                      shared + int64_t{sizeof(DraftProgram)} <= cuda_shared_memory_limit(device);
    if (fits && p.max_rows * p.value_heads >= kManyUnits) {
      // measured: 8 rows a lane for fp32 pools; 4 leave bf16 pools the issue slots their rounding takes
      constexpr int R = sizeof(T) == 4 ? 8 : 4;
      return launch_sequence_as<T, StateLayout::vk, 128, R, 32 / R, Tuned>(p, args, execution);
    }
    return launch_sequence_as<T, StateLayout::vk, 128, 2, 4, Tuned>(p, args, execution);
  }
  if (padded <= 128) return launch_sequence_as<T, StateLayout::vk, 128, 2, 4, AnyIo>(p, args, execution);
  return launch_sequence_as<T, StateLayout::vk, 256, 2, 4, AnyIo>(p, args, execution);
}

}  // namespace kda::cuda
