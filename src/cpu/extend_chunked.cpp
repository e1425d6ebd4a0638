// extend in fast numerics: chunks of tokens, counted from the row's start, on a transposed state (V contiguous).
#include <initializer_list>

#include "cpu/extend_unit.h"
#include "cpu/kernels.h"

namespace kda {
namespace cpu {
namespace {

class ChunkedRow {
 public:
  ChunkedRow(const ExtendUnit& u, HeadTokens& tokens)
      : u_(u),
        tokens_(tokens),
        args_{.tokens = &u.lane.token(0),
              .count = 0,
              .token_stride = u.lane.layout().token_floats,
              .key_padded = u.lane.layout().key_padded,
              .total_decay = u.lane.total_decay(),
              .key_mix = key_mix_,
              .query_mix = query_mix_,
              .state = u.lane.head_state(),
              .state_stride = u.lane.layout().value_padded + kTurnedPadding,
              .first_column = u.unit.first_row,
              .columns = padded_value(u.unit.rows),
              .scratch = u.lane.chunk()} {}

  void run() {
    const int64_t length = u_.row.length();
    load_state();
    int64_t snapshot = next_snapshot(*u_.snapshots, u_.row.index, 0);
    if (snapshot == 0) {
      store_snapshots(0);
      snapshot = next_snapshot(*u_.snapshots, u_.row.index, 1);
    }
    for (int64_t begin = 0; begin < length; begin += kChunkTokens) {
      const int64_t end = min_of(length, begin + kChunkTokens);
      run_chunk(begin, end);
      if (snapshot == end) {
        store_snapshots(end);
        snapshot = next_snapshot(*u_.snapshots, u_.row.index, end + 1);
      }
    }
    if (u_.destination.present()) store_state(u_.destination);
  }

 private:
  void run_chunk(int64_t begin, int64_t end) {
    args_.count = static_cast<int>(end - begin);
    for (int i = 0; i < args_.count; ++i) tokens_.prepare(u_.row.begin + begin + i, i);
    prefetch(end, {0, 1});
    u_.functions.mix_chunk(args_);
    prefetch(end, {2, 3});
    u_.functions.run_chunk(args_);
    for (int i = 0; i < args_.count; ++i) {
      tokens_.store_out(u_.row.begin + begin + i, i, u_.unit.first_row, u_.unit.rows);
    }
  }

  void prefetch(int64_t begin, std::initializer_list<int> parts) const {
    const int64_t end = min_of(u_.row.length(), begin + kChunkTokens);
    for (const int part : parts) {
      for (int64_t t = begin; t < end; ++t) tokens_.prefetch(u_.row.begin + t, part);
    }
  }

  float* columns(int64_t first) const { return args_.state + u_.unit.first_row + first; }
  // Rows are turned in blocks of 4; those behind the last one only fill columns that nothing reads.
  static int64_t turned(int64_t rows) { return (rows + 3) / 4 * 4; }

  void load_state() const {
    const int64_t padded = args_.key_padded;
    if (!u_.source.present()) {
      for (int64_t k = 0; k < padded; ++k) {
        for (int64_t c = 0; c < args_.columns; ++c) columns(0)[k * args_.state_stride + c] = 0.0f;
      }
      return;
    }
    const StateRows tile = float_rows(u_.lane.tile(0), padded);
    for_tiles(u_.lane.layout(), u_.unit.rows, [&](int64_t first, int64_t rows) {
      load_rows(u_.problem, u_.functions, u_.source, u_.unit.first_row + first, rows, tile);
      u_.functions.transpose(u_.lane.tile(0), padded, turned(rows), padded, columns(first), args_.state_stride);
    });
  }

  void store_state(const StoredState& to) const {
    const int64_t padded = args_.key_padded;
    for_tiles(u_.lane.layout(), u_.unit.rows, [&](int64_t first, int64_t rows) {
      u_.functions.transpose(columns(first), args_.state_stride, padded, turned(rows), u_.lane.tile(0), padded);
      store_rows(u_.problem, u_.functions, float_rows(u_.lane.tile(0), padded), u_.unit.first_row + first, rows, to);
    });
  }

  void store_snapshots(int64_t position) const {
    for_snapshots(u_.problem, *u_.snapshots, u_.own_pool, u_.row.index, position, [&](int64_t slot) {
      store_state(stored_head(u_.problem, u_.snapshots->pool, 0, slot, u_.unit.head));
    });
  }

  const ExtendUnit& u_;
  HeadTokens& tokens_;
  ChunkArgs args_;
  float key_mix_[kChunkTokens * kChunkTokens] = {}, query_mix_[kChunkTokens * kChunkTokens] = {};
};

}  // namespace
}  // namespace cpu

Status cpu_extend_chunked(const Problem& problem, const ExtendLaunch& launch, const Execution& execution) {
  return cpu::run_extend(problem, launch, &launch.snapshots, execution,
                         [](const cpu::ExtendUnit& u, cpu::HeadTokens& tokens) { cpu::ChunkedRow(u, tokens).run(); });
}

}  // namespace kda
