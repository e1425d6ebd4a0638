// What the kernels of extend and decode share: walking units, null and empty rows, where states come from and go to.
#pragma once

#include "cpu/head_tokens.h"
#include "cpu/snapshots.h"
#include "cpu/targets.h"

namespace kda::cpu {

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

// A row without tokens keeps its initial state: only a destination elsewhere, or a fresh row, is written.
inline void finish_empty_row(const ExtendUnit& u) {
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

// run_row(unit, tokens): the tokens of a row that has some.
template <class Launch, class RunRow>
Status run_extend(const Problem& problem, const Launch& launch, const StateSnapshots* snapshots,
                  const Execution& execution, const RunRow& run_row) {
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

}  // namespace kda::cpu
