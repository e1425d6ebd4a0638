// extend and decode: the tokens of a row, one after another, from its slot.
#include "cpu/extend_unit.h"
#include "cpu/kernels.h"

namespace kda {
namespace cpu {
namespace {

// The unit's part of the head's working state, fp32.
StateRows working_rows(const Lane& lane, int64_t first) {
  const int64_t stride = lane.layout().key_padded;
  return float_rows(lane.head_state() + first * stride, stride);
}

// Where the recurrence reads the row's initial state: in place if it can, else a copy in the working state.
StateRows initial_rows(const ExtendUnit& u, int64_t first, int64_t rows) {
  if (!u.source.present()) return zero_rows(u.lane);
  if (steps_in_place(u.problem, u.source)) return rows_in_place(u.problem, u.source, u.unit.first_row + first);
  const StateRows copy = working_rows(u.lane, first);
  load_rows(u.problem, u.functions, u.source, u.unit.first_row + first, rows, copy);
  return copy;
}

void store_snapshots(const ExtendUnit& u, int64_t position, const StateRows& state, int64_t first, int64_t rows) {
  for_snapshots(u.problem, *u.snapshots, u.own_pool, u.row.index, position, [&](int64_t slot) {
    store_rows(u.problem, u.functions, state, u.unit.first_row + first, rows,
               stored_head(u.problem, u.snapshots->pool, 0, slot, u.unit.head));
  });
}

int64_t tile_count(const ExtendUnit& u) {
  const int64_t tile_rows = u.lane.layout().tile_rows;
  return (u.unit.rows + tile_rows - 1) / tile_rows;
}

// Tokens [begin, end) of the row, already prepared as lane tokens 0.., over the rows of one tile.
void run_chunk(const ExtendUnit& u, const HeadTokens& tokens, int64_t begin, int64_t end, int64_t first, int64_t rows) {
  const int64_t head_row = u.unit.first_row + first;
  const bool last_chunk = end == u.row.length();
  const StateRows working = working_rows(u.lane, first);
  StateRows state = begin == 0 ? initial_rows(u, first, rows) : working;
  int64_t snapshot = u.snapshots == nullptr ? kNoSnapshot : next_snapshot(*u.snapshots, u.row.index, begin);
  if (begin == 0 && snapshot == 0) store_snapshots(u, 0, state, first, rows);
  if (snapshot == begin) snapshot = next_snapshot(*u.snapshots, u.row.index, begin + 1);

  StepArgs step{.source = state, .first_row = head_row, .rows = rows, .key_padded = u.lane.layout().key_padded};
  step.next = &u.lane.token(0);
  if (u.row.length() == 1 && snapshot != 1 && u.destination.present() && steps_in_place(u.problem, u.destination)) {
    step.target = rows_in_place(u.problem, u.destination, head_row);
    return u.functions.decode(step);
  }
  u.functions.step(step);
  const int64_t tile = first / u.lane.layout().tile_rows, tiles = tile_count(u);
  for (int64_t t = begin; t < end; ++t) {
    if (t + u.lane.layout().tokens < u.row.length()) {
      for (int64_t part = tile; part < HeadTokens::kPrefetchParts; part += tiles) {
        tokens.prefetch(u.row.begin + t + u.lane.layout().tokens, static_cast<int>(part));
      }
    }
    const bool final_token = last_chunk && t + 1 == end;
    step.source = state;
    step.target = working;
    // The final state goes straight to its pool, unless a snapshot needs it unrounded or nothing needs it.
    bool stored = false;
    if (final_token && snapshot != t + 1) {
      if (!u.destination.present()) return;
      if (steps_in_place(u.problem, u.destination)) {
        step.target = rows_in_place(u.problem, u.destination, head_row);
        stored = true;
      }
    }
    step.update = &u.lane.token(static_cast<int>(t - begin));
    step.next = t + 1 < end ? &u.lane.token(static_cast<int>(t + 1 - begin)) : nullptr;
    u.functions.step(step);
    state = step.target;
    if (snapshot == t + 1) {
      store_snapshots(u, snapshot, state, first, rows);
      snapshot = next_snapshot(*u.snapshots, u.row.index, t + 2);
    }
    if (final_token && !stored && u.destination.present()) {
      store_rows(u.problem, u.functions, state, head_row, rows, u.destination);
    }
  }
}

// Nothing is copied on the way: no need for tiles.
bool in_place(const ExtendUnit& u) {
  const auto at_its_place = [&](const StoredState& s) { return !s.present() || steps_in_place(u.problem, s); };
  return at_its_place(u.source) && at_its_place(u.destination);
}

void run_row(const ExtendUnit& u, HeadTokens& tokens) {
  const int64_t length = u.row.length(), chunk = u.lane.layout().tokens;
  for (int64_t begin = 0; begin < length; begin += chunk) {
    const int64_t end = min_of(length, begin + chunk);
    for (int64_t t = begin; t < end; ++t) {
      tokens.prepare(u.row.begin + t, static_cast<int>(t - begin));
    }
    if (length == 1 && in_place(u)) {
      run_chunk(u, tokens, begin, end, 0, u.unit.rows);
    } else {
      for_tiles(u.lane.layout(), u.unit.rows,
                [&](int64_t first, int64_t rows) { run_chunk(u, tokens, begin, end, first, rows); });
    }
    for (int64_t t = begin; t < end; ++t) {
      tokens.store_out(u.row.begin + t, static_cast<int>(t - begin), u.unit.first_row, u.unit.rows);
    }
  }
}

}  // namespace
}  // namespace cpu

Status cpu_extend_exact(const Problem& problem, const ExtendLaunch& launch, const Execution& execution) {
  return cpu::run_extend(problem, launch, &launch.snapshots, execution, cpu::run_row);
}

Status cpu_decode_exact(const Problem& problem, const DecodeLaunch& launch, const Execution& execution) {
  return cpu::run_extend(problem, launch, nullptr, execution, cpu::run_row);
}

int64_t cpu_workspace(const Problem& problem) { return cpu::scratch_bytes(problem); }

}  // namespace kda
