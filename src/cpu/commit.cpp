// commit: the state along an accepted path, replayed from the committed state and a verify's records.
#include "cpu/commit_path.h"
#include "cpu/kernels.h"

namespace kda {
namespace cpu {
namespace {

void commit_piece(const Problem& problem, const CommitLaunch& launch, const Execution& execution, Lane& lane,
                  const Unit& unit, int layer) {
  const TargetFunctions& functions = target_functions(execution.cpu_target);
  const Row row = resolve_row(problem, launch.rows, launch.state, launch.dst, unit.row);
  if (row.null) return;
  StoredState source, destination;
  if (row.source >= 0) source = stored_head(problem, launch.state, layer, row.source, unit.head);
  if (row.destination >= 0) destination = stored_head(problem, launch.dst, layer, row.destination, unit.head);
  const int64_t tip = launch.tips.at(unit.row);
  const int64_t record_row = launch.record_rows.present() ? launch.record_rows.at(unit.row) : unit.row;
  if (tip < 0 || record_row < 0) {
    if (launch.rows.dst_slots.present() && destination.present() && !(row.in_place && source.present())) {
      copy_rows(problem, functions, source, unit.first_row, unit.rows, destination);
    }
    return;
  }
  const std::byte* record = launch.records.layer_base(layer) + record_row * launch.records.row_stride;
  RecordPath path;
  const uint32_t bad = read_record_path(record, kRecordMagic, record_layout(problem), problem.max_nodes, tip, path);
  if (bad != 0) return report_device_status(execution.device_status, bad);
  const CommitUnit u{problem, functions,   lane, unit,   unit.row,         layer,
                     source,  destination, path, record, launch.snapshots, launch.state};
  prepare_path(u);
  for_tiles(lane.layout(), unit.rows, [&](int64_t first, int64_t rows) { commit_tile(u, first, rows, nullptr); });
}

}  // namespace
}  // namespace cpu

Status cpu_commit_exact(const Problem& problem, const CommitLaunch& launch, const Execution& execution) {
  const cpu::UnitSplit split =
      cpu::split_units(problem, launch.rows.count * launch.layers, cpu::thread_count(execution));
  cpu::run_pieces(problem, execution, split.count(), [&](cpu::Lane& lane, int64_t piece) {
    cpu::Unit unit = cpu::unit_of(split, piece);
    const int layer = static_cast<int>(unit.row / launch.rows.count);
    unit.row %= launch.rows.count;
    cpu::commit_piece(problem, launch, execution, lane, unit, layer);
  });
  return KDA_OK;
}

}  // namespace kda
