// How the workspace is divided. Work runs on lanes: each lane has its own part of the workspace and takes pieces of
// work until none is left, so memory is bounded by the number of lanes and no bit depends on which lane ran what.
#pragma once

#include <atomic>

#include "core/launch.h"
#include "core/thread_pool.h"
#include "cpu/target_functions.h"

namespace kda::cpu {

constexpr int kMaxLanes = 64;
// Tokens of an extend that are prepared together: at K = V = 128 their vectors take 56 KiB, a part of a level 2 cache.
constexpr int kExtendChunk = kChunkTokens;
// Rows are stepped in tiles of at most this many floats (16 KiB), so that a tile stays in the level 1 cache while the
// tokens pass over it.
constexpr int kTileFloats = 4096;
// States alive at once while a draft tree is walked (see tree_walk.h); one more tile holds a state before rounding.
constexpr int kTreeTiles = 8;
// Floats between rows of the turned state beyond V: rows a multiple of 512 bytes apart would share a few of the level 1
// cache's sets.
constexpr int kTurnedPadding = 16;
constexpr int kConvBlock = 256;  // channels that one piece of a convolution covers

struct ScratchLayout {
  int64_t key_padded, value_padded;
  int tokens;      // prepared tokens
  int tile_rows;   // rows of a tile
  int tree_tiles;  // tiles besides the one for unrounded states
  int64_t token_floats, tile_floats;
  int64_t tokens_begin, head_begin, tiles_begin, chunk_begin, conv_begin;  // floats from the start of a lane
  int64_t lane_floats;
  int lanes;
};

constexpr int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
constexpr int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

// Rows of kConvBlock floats: interleaved taps (W), weights (W), bias, output, window (W-1), then one row per node or a
// ring of W inputs.
constexpr int64_t conv_rows(const Problem& p) {
  return 3 * int64_t{p.conv_width} + 1 + max_of(p.max_nodes, p.conv_width);
}

constexpr ScratchLayout scratch_layout(const Problem& p) {
  ScratchLayout s{};
  s.key_padded = padded_key(p.key_dim);
  s.value_padded = padded_value(p.value_dim);
  const bool chunked = p.extend_numerics == Numerics::fast;
  s.tokens = static_cast<int>(max_of(p.max_nodes, chunked ? kExtendChunk : min_of(kExtendChunk, p.max_tokens)));
  s.tile_rows = static_cast<int>(min_of(kTileFloats / s.key_padded / 16 * 16, s.value_padded));
  s.token_floats = 4 * s.key_padded + 3 * s.value_padded;
  s.tile_floats = s.tile_rows * s.key_padded;
  s.tokens_begin = 3 * s.key_padded;  // first: the gate's bias, a row of zeros, a chunk's decay
  s.head_begin = s.tokens_begin + s.tokens * s.token_floats;
  s.tiles_begin = s.head_begin + (s.value_padded + (chunked ? kTurnedPadding : 0)) * s.key_padded;
  s.tree_tiles = p.max_nodes > 1 ? kTreeTiles : 1;
  s.chunk_begin = s.tiles_begin + (s.tree_tiles + 1) * s.tile_floats;
  s.conv_begin = s.chunk_begin + (chunked ? chunk_scratch(s.key_padded) : 0);
  s.lane_floats = s.conv_begin + (p.conv_width > 0 ? int64_t{kConvBlock} * conv_rows(p) : 0);
  s.lane_floats = (s.lane_floats + 31) / 32 * 32;
  const int64_t units = max_of(p.max_rows, 1) * p.value_heads * max_of(1, s.value_padded / 16);
  const int64_t fitting = p.max_workspace_bytes / (4 * s.lane_floats);
  s.lanes = static_cast<int>(max_of(1, min_of(min_of(kMaxLanes, units), fitting)));
  return s;
}

// What states between the nodes of a draft are kept in: exact numerics round them as decoding along the path would,
// fast numerics round only what is stored.
constexpr DType path_state(const Problem& p) { return p.verify_numerics == Numerics::fast ? DType::fp32 : p.state; }

// One lane's memory.
class Lane {
 public:
  Lane(const ScratchLayout& layout, float* base) : layout_(layout), base_(base) {
    for (int64_t i = 0; i < layout.key_padded; ++i) zeros()[i] = 0.0f;
  }
  const ScratchLayout& layout() const { return layout_; }
  float* bias() const { return base_; }
  float* zeros() const { return base_ + layout_.key_padded; }
  float* total_decay() const { return base_ + 2 * layout_.key_padded; }
  // [V padded][K padded], or turned: [K padded][V padded + kTurnedPadding]
  float* head_state() const { return base_ + layout_.head_begin; }
  float* tile(int index) const { return base_ + layout_.tiles_begin + index * layout_.tile_floats; }
  float* unrounded_tile() const { return tile(layout_.tree_tiles); }
  float* chunk() const { return base_ + layout_.chunk_begin; }  // where extend_numerics is fast
  float* conv_row(int64_t index) const { return base_ + layout_.conv_begin + index * kConvBlock; }
  std::byte* memory() const { return reinterpret_cast<std::byte*>(base_); }
  int64_t memory_bytes() const { return 4 * layout_.lane_floats; }
  PreparedToken& token(int index) { return tokens_[index]; }
  // Points token `index` at its vectors; before its first use in a piece.
  PreparedToken& reset_token(int index) {
    float* p = base_ + layout_.tokens_begin + index * layout_.token_floats;
    const int64_t k = layout_.key_padded, v = layout_.value_padded;
    tokens_[index] = {.decay = p,
                      .key = p + k,
                      .decayed_key = p + 2 * k,
                      .decayed_query = p + 3 * k,
                      .value = p + 4 * k,
                      .correction = p + 4 * k + v,
                      .out = p + 4 * k + 2 * v,
                      .key_query = 0,
                      .beta = 0};
    return tokens_[index];
  }

 private:
  const ScratchLayout& layout_;
  float* base_;
  PreparedToken tokens_[kMaxDraftNodes > kExtendChunk ? kMaxDraftNodes : kExtendChunk];
};

inline int thread_count(const Execution& execution) {
  return execution.threads == nullptr ? 1 : execution.threads->threads();
}

// Runs body(lane, piece) for every piece in [0, count).
template <class Body>
void run_pieces(const Problem& problem, const Execution& execution, int64_t count, const Body& body) {
  const ScratchLayout layout = scratch_layout(problem);
  float* memory = reinterpret_cast<float*>(execution.workspace);
  std::atomic<int64_t> next{0};
  const auto run_lane = [&](int64_t index) {
    if (next.load(std::memory_order_relaxed) >= count) return;
    Lane lane(layout, memory + index * layout.lane_floats);
    for (;;) {
      const int64_t piece = next.fetch_add(1, std::memory_order_relaxed);
      if (piece >= count) return;
      body(lane, piece);
    }
  };
  const int64_t lanes = min_of(layout.lanes, count);
  if (lanes <= 1 || execution.threads == nullptr) {
    run_lane(0);
  } else {
    execution.threads->parallel_for(lanes, run_lane);
  }
}

// Bytes of the workspace; what KernelRow::workspace of every cpu kernel answers.
inline int64_t scratch_bytes(const Problem& problem) {
  const ScratchLayout layout = scratch_layout(problem);
  return 4 * layout.lane_floats * layout.lanes;
}

}  // namespace kda::cpu
