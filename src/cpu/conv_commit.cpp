#include "cpu/conv_commit.h"

#include <cstring>
#include <utility>

#include "cpu/kernels.h"

namespace kda {
namespace cpu {

void commit_window(const ConvCommitUnit& u, bool keep) {
  const Problem& p = u.problem;
  const int count = p.conv_width - 1;
  const ConvRecordLayout layout = conv_record_layout(p, u.channels);
  load_window(p, u.functions, u.state, u.layer, u.row.source, u.block, u.scratch);
  float* rows[kMaxConvWidth];
  for (int w = 0; w < count; ++w) rows[w] = u.scratch.window(w);
  for (int i = 0; i < u.path.length; ++i) {
    const int node = u.path.nodes[i];
    float* newest = rows[0];  // the oldest input leaves, its row takes the node's
    for (int w = 0; w + 1 < count; ++w) rows[w] = rows[w + 1];
    rows[count - 1] = newest;
    const std::byte* x = u.record + layout.nodes_begin + node * layout.node_bytes + u.block.first * size_of(p.io);
    u.functions.widen(x, p.io, u.block.channels, newest);
    if (next_snapshot(u.snapshots, u.row.index, node) != node) continue;
    for_snapshots(p, u.snapshots, u.state, u.row.index, node, [&](int64_t slot) {
      store_window(p, u.functions, rows, u.snapshots.pool, u.layer, slot, u.block, u.scratch);
    });
  }
  if (u.row.destination >= 0) {
    store_window(p, u.functions, rows, u.dst, u.layer, u.row.destination, u.block, u.scratch);
  }
  if (!keep) return;
  // Back to their places: input rows are free until the first node is loaded.
  for (int w = 0; w < count; ++w) {
    std::memcpy(u.scratch.input(w), rows[w], u.block.channels * sizeof(float));
  }
  for (int w = 0; w < count; ++w) {
    std::memcpy(u.scratch.window(w), u.scratch.input(w), u.block.channels * sizeof(float));
  }
}

namespace {

void commit_row(const Problem& problem, const ConvCommitLaunch& launch, const Execution& execution, Lane& lane,
                const ConvBlock& block, int layer, int64_t index) {
  const TargetFunctions& functions = target_functions(execution.cpu_target);
  const ConvScratch scratch(problem, lane);
  // Commit takes its rows from tips: cu_seqlens is not read.
  Row row = resolve_row(problem, launch.rows, launch.state, launch.dst, index);
  if (row.null) return;
  const int64_t tip = launch.tips.at(index);
  const int64_t record_row = launch.record_rows.present() ? launch.record_rows.at(index) : index;
  if (tip < 0 || record_row < 0) {
    if (launch.rows.dst_slots.present() && row.destination >= 0 && !(row.in_place && row.source >= 0)) {
      copy_window(problem, functions, launch.state, row.source, launch.dst, row.destination, layer, block, scratch);
    }
    return;
  }
  const std::byte* record = launch.records.layer_base(layer) + record_row * launch.records.row_stride;
  RecordPath path;
  const uint32_t bad = read_record_path(record, kConvRecordMagic, conv_record_layout(problem, launch.channels),
                                        problem.max_nodes, tip, path);
  if (bad != 0) return report_device_status(execution.device_status, bad);
  const ConvCommitUnit unit{problem, functions,       block,           scratch,    lane,
                            row,     layer,           launch.state,    launch.dst, path,
                            record,  launch.channels, launch.snapshots};
  commit_window(unit, false);
}

}  // namespace
}  // namespace cpu

Status cpu_conv_commit(const Problem& problem, const ConvCommitLaunch& launch, const Execution& execution) {
  const cpu::ConvSplit split =
      cpu::split_conv(launch.rows.count * launch.layers, launch.channels, cpu::thread_count(execution));
  cpu::run_pieces(problem, execution, split.count(), [&](cpu::Lane& lane, int64_t piece) {
    const cpu::ConvBlock block = split.block(piece);
    for (int64_t r = split.first_row(piece); r < split.last_row(piece); ++r) {
      const int layer = static_cast<int>(r / launch.rows.count);
      cpu::commit_row(problem, launch, execution, lane, block, layer, r % launch.rows.count);
    }
  });
  return KDA_OK;
}

}  // namespace kda
