// Extend and decode: rows of tokens from their slots to their slots.
#include "reference/kernels.h"
#include "reference/pools.h"
#include "reference/recurrence.h"

namespace kda {

using namespace reference;

namespace {

void store_snapshots(const Problem& problem, const StateSnapshots& list, const StatePool& own, int64_t row,
                     int64_t position, int value_head, const float* state) {
  for (int64_t i = 0; i < list.count(); ++i) {
    const int64_t wanted = list.positions.at(i) + (planted(Fault::snapshot_one_late) ? 1 : 0);
    if (list.rows.at(i) != row || wanted != position) continue;
    const int64_t slot = list.slots.at(i);
    if (is_skipped(problem, slot, list.pool, own)) continue;
    store_state(problem, state, unit_place(problem, list.pool, 0, slot, value_head));
  }
}

void run_unit(const Problem& problem, const ExtendLaunch& launch, int64_t row, int value_head, float* state) {
  const int64_t begin = token_begin(launch.rows, row), end = token_end(launch.rows, row);
  const int64_t target = final_slot(problem, launch.rows, row, launch.dst, launch.state);
  load_or_zero(problem, launch.state, 0, source_slot(launch.rows, row), value_head, state);
  store_snapshots(problem, launch.snapshots, launch.state, row, 0, value_head, state);
  TokenTerms terms;
  float u[kMaxHeadDim];
  for (int64_t token = begin; token < end; ++token) {
    token_terms(problem, launch.tokens, token, begin, value_head, &terms);
    step(problem, terms, state, u);
    if (planted(Fault::out_after_pool_rounding)) round_state(problem, problem.state, state);
    write_out(problem, launch.tokens, token, value_head, terms, state);
    if (planted(Fault::extend_rounds_every_token)) round_state(problem, problem.state, state);
    store_snapshots(problem, launch.snapshots, launch.state, row, token - begin + 1, value_head, state);
  }
  if (target != kNoSlot && end > begin) {
    const StatePool& pool = planted(Fault::dst_ignored) ? launch.state : launch.dst;
    store_state(problem, state, unit_place(problem, pool, 0, target, value_head));
  }
}

}  // namespace

int64_t reference_state_workspace(const Problem& problem) {
  return int64_t{problem.key_dim} * problem.value_dim * int64_t{sizeof(float)};
}

Status reference_extend(const Problem& problem, const ExtendLaunch& launch, const Execution& execution) {
  float* state = reinterpret_cast<float*>(execution.workspace);
  for (int64_t row = 0; row < launch.rows.count; ++row) {
    const int64_t begin = token_begin(launch.rows, row), end = token_end(launch.rows, row);
    if (is_null(problem, launch.rows, row)) {
      write_zero_out(problem, launch.tokens, begin, end);
      continue;
    }
    for (int hv = 0; hv < problem.value_heads; ++hv) run_unit(problem, launch, row, hv, state);
    if (begin == end) {
      const int64_t source = planted(Fault::empty_row_clears) ? kNoSlot : source_slot(launch.rows, row);
      carry_state(problem, launch.state, source, launch.dst,
                  final_slot(problem, launch.rows, row, launch.dst, launch.state), 0);
    }
  }
  return KDA_OK;
}

Status reference_decode(const Problem& problem, const DecodeLaunch& launch, const Execution& execution) {
  return reference_extend(problem, {launch.tokens, launch.rows, launch.state, launch.dst, {}}, execution);
}

}  // namespace kda
