// extend and decode: the tokens of a row, one after another, from its slot.
#include "cpu/head_tokens.h"
#include "cpu/kernels.h"
#include "cpu/snapshots.h"
#include "cpu/targets.h"

namespace kda {
namespace cpu {
namespace {

struct ExtendUnit {
  const Problem& problem;
  const TargetFunctions& functions;
  Lane& lane;
  const Row& row;
  const Unit& unit;
  StoredState source, destination;  // absent: zeros, not stored
  const StateSnapshots* snapshots;  // null in decode
  const StatePool& own_pool;
};

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

// A row without tokens keeps its initial state: only a destination elsewhere, or a fresh row, is written.
void finish_empty_row(const ExtendUnit& u) {
  if (u.snapshots != nullptr) {
    for_snapshots(u.problem, *u.snapshots, u.own_pool, u.row.index, 0, [&](int64_t slot) {
      copy_rows(u.problem, u.functions, u.source, u.unit.first_row, u.unit.rows,
                stored_head(u.problem, u.snapshots->pool, 0, slot, u.unit.head));
    });
  }
  if (u.destination.present() && !(u.row.in_place && u.source.present())) {
    copy_rows(u.problem, u.functions, u.source, u.unit.first_row, u.unit.rows, u.destination);
  }
}

// Tokens [begin, end) of the row, already prepared as lane tokens 0.., over the rows of one tile.
void run_chunk(const ExtendUnit& u, int64_t begin, int64_t end, int64_t first, int64_t rows) {
  const int64_t head_row = u.unit.first_row + first;
  const bool last_chunk = end == u.row.length();
  const StateRows working = working_rows(u.lane, first);
  StateRows state = begin == 0 ? initial_rows(u, first, rows) : working;
  int64_t snapshot = u.snapshots == nullptr ? kNoSnapshot : next_snapshot(*u.snapshots, u.row.index, begin);
  if (begin == 0 && snapshot == 0) store_snapshots(u, 0, state, first, rows);
  if (snapshot == begin) snapshot = next_snapshot(*u.snapshots, u.row.index, begin + 1);

  StepArgs step{.source = state, .first_row = head_row, .rows = rows, .key_padded = u.lane.layout().key_padded};
  step.next = &u.lane.token(0);
  u.functions.step(step);
  for (int64_t t = begin; t < end; ++t) {
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

void run_row(const ExtendUnit& u, HeadTokens& tokens) {
  const int64_t length = u.row.length(), chunk = u.lane.layout().tokens;
  for (int64_t begin = 0; begin < length; begin += chunk) {
    const int64_t end = min_of(length, begin + chunk);
    for (int64_t t = begin; t < end; ++t) tokens.prepare(u.row.begin + t, static_cast<int>(t - begin));
    for_tiles(u.lane.layout(), u.unit.rows,
              [&](int64_t first, int64_t rows) { run_chunk(u, begin, end, first, rows); });
    for (int64_t t = begin; t < end; ++t) {
      tokens.store_out(u.row.begin + t, static_cast<int>(t - begin), u.unit.first_row, u.unit.rows);
    }
  }
}

template <class Launch>
Status run_extend(const Problem& problem, const Launch& launch, const StateSnapshots* snapshots,
                  const Execution& execution) {
  const TargetFunctions& functions = target_functions(execution.cpu_target);
  const UnitSplit split = split_units(problem, launch.rows.count, thread_count(execution));
  run_pieces(problem, execution, split.count(), [&](Lane& lane, int64_t piece) {
    const Unit unit = unit_of(split, piece);
    const Row row = resolve_row(problem, launch.rows, launch.state, launch.dst, unit.row);
    HeadTokens tokens(problem, functions, launch.tokens, unit.head, lane);
    if (row.null) {
      for (int64_t t = row.begin; t < row.end; ++t) tokens.store_zero_out(t, unit.first_row, unit.rows);
      return;
    }
    ExtendUnit u{problem, functions, lane, row, unit, {}, {}, snapshots, launch.state};
    if (row.source >= 0) u.source = stored_head(problem, launch.state, 0, row.source, unit.head);
    if (row.destination >= 0) u.destination = stored_head(problem, launch.dst, 0, row.destination, unit.head);
    if (row.length() == 0) return finish_empty_row(u);
    run_row(u, tokens);
  });
  return KDA_OK;
}

}  // namespace
}  // namespace cpu

Status cpu_extend_exact(const Problem& problem, const ExtendLaunch& launch, const Execution& execution) {
  return cpu::run_extend(problem, launch, &launch.snapshots, execution);
}

Status cpu_decode_exact(const Problem& problem, const DecodeLaunch& launch, const Execution& execution) {
  return cpu::run_extend(problem, launch, nullptr, execution);
}

int64_t cpu_workspace(const Problem& problem) { return cpu::scratch_bytes(problem); }

}  // namespace kda
