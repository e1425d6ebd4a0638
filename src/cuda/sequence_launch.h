// Extend and verify by the exact recurrence: which instantiation serves a problem.
#pragma once

#include <algorithm>

#include "cuda/device/verify_stream.cuh"
#include "cuda/host.h"

namespace kda::cuda {

// One source per form of tile, to keep compilation parallel. rounded: the pool is bf16 and the state is rounded after
// every token.
Status launch_sequence_fp32(const Problem& p, SequenceArgs& args, const Execution& execution);
Status launch_sequence_bf16(const Problem& p, SequenceArgs& args, const Execution& execution);
Status launch_sequence_rounded(const Problem& p, SequenceArgs& args, const Execution& execution);

// From this many units on (rows times value heads of the plan) a block takes all rows of a head of 128 channels.
constexpr int64_t kManyUnits = 192;
// Tokens prepared at a time: as many as most drafts have; where blocks keep more in shared memory, half of that.
constexpr int kTileTokens = 16;

template <class Tile, int W, int Blocks, class Io>
Status launch_sequence_as(const Problem& p, SequenceArgs& args, const Execution& execution) {
  using Shared = SequenceShared<Tile, W>;
  const int64_t splits = (p.value_dim + Shared::kBlockRows - 1) / Shared::kBlockRows;
  args.grid = {Divisor(splits), Divisor(p.value_heads)};
  const bool draft = args.verify && args.draft.parents.present();
  // the pool keeps the state that restarts begin from, unless this call may overwrite or not store it
  args.keep_initial = draft && (!Io::kFixed || (args.pending.present() && args.rows.dst_slots.present()));
  args.tile_tokens = args.keep_initial || Tile::KP > 128 ? kTileTokens / 2 : kTileTokens;
  const int64_t bytes = Shared::bytes(args.tile_tokens, draft ? p.max_nodes : 0, args.keep_initial);
  return launch<sequence_kernel<Tile, W, Blocks, Io>, true>(args.rows.count * p.value_heads * splits, 1,
                                                            Shared::kThreads, bytes, execution, args);
}

// From this many units on every block that stays has more than one: 2 a multiprocessor, 132 of them on an H200.
constexpr int64_t kStreamUnits = 384;

inline bool can_stream(const Problem& p, const SequenceArgs& args) {
  return args.verify && p.max_nodes <= kStreamNodes && p.max_rows * p.value_heads >= kStreamUnits &&
         p.value_dim == 128 && cuda_streams_verify();
}

template <class Tile, class Io, bool Pending>
Status launch_stream(const Problem& p, SequenceArgs& args, const Execution& execution) {
  const int64_t units = args.rows.count * p.value_heads;
  args.grid = {Divisor(1), Divisor(p.value_heads)};
  const int nodes = args.draft.parents.present() ? p.max_nodes : 0;
  return launch<verify_stream_kernel<Tile, Io, Pending>, true>(std::min<int64_t>(units, 2 * cuda_multiprocessors()), 1,
                                                               256, StreamLayout<Tile>::bytes(nodes), execution,
                                                               StreamArgs{args, static_cast<uint32_t>(units)});
}

// TileOf<Layout, KP, R, AnyMemory>; Wide: rows a lane, warps and blocks a multiprocessor where units are many; Streams:
// verify_stream.cuh has this tile.
template <template <StateLayout, int, int, bool> class TileOf, int WideR, int WideW, int WideBlocks, bool Streams>
Status launch_sequence(const Problem& p, SequenceArgs& args, const Execution& execution) {
  constexpr auto vk = StateLayout::vk, kv = StateLayout::kv;
  // Channels beyond K are zeros, which change no sum: a kernel of more channels gives the same bits.
  const int padded = padded_key_dim(p.key_dim);
  if (p.state_layout == kv) {
    if (padded <= 128) return launch_sequence_as<TileOf<kv, 128, 4, true>, 4, 2, AnyIo>(p, args, execution);
    return launch_sequence_as<TileOf<kv, 256, 4, true>, 4, 1, AnyIo>(p, args, execution);
  }
  const bool plain = !args.snapshots.rows.present() && args.node_states == nullptr && !args.node_slots.present() &&
                     args.dst.dtype == p.state && (!args.state.present() || is_aligned(args.state)) &&
                     (!args.dst.present() || is_aligned(args.dst));
  using Tuned = FixedIo<DType::bf16>;
  if (plain && padded == 64 && is_fixed_bf16(p, args.tokens, 64)) {
    return launch_sequence_as<TileOf<vk, 64, WideR / 2, false>, 4, 4, Tuned>(p, args, execution);
  }
  if (plain && padded == 128 && is_fixed_bf16(p, args.tokens, 128)) {
    if constexpr (Streams) {
      using Tile = TileOf<vk, 128, WideR, false>;
      if (can_stream(p, args)) {
        if (!args.pending.present()) return launch_stream<Tile, Tuned, false>(p, args, execution);
        // 68 against 80 us for fp32 pools; for rounded ones 73 against 71, so they stay with the other kernel
        if constexpr (!Tile::kRounds) return launch_stream<Tile, Tuned, true>(p, args, execution);
      }
    }
    if (p.max_rows * p.value_heads >= kManyUnits) {
      return launch_sequence_as<TileOf<vk, 128, WideR, false>, WideW, WideBlocks, Tuned>(p, args, execution);
    }
    return launch_sequence_as<TileOf<vk, 128, 2, false>, 4, 2, Tuned>(p, args, execution);
  }
  if (padded <= 128) return launch_sequence_as<TileOf<vk, 128, 2, true>, 4, 3, AnyIo>(p, args, execution);
  return launch_sequence_as<TileOf<vk, 256, 2, true>, 4, 2, AnyIo>(p, args, execution);
}

}  // namespace kda::cuda
