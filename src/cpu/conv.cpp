// The short convolution: extend and decode along a row, verify along a draft tree.
#include <cstring>

#include "cpu/conv_commit.h"
#include "cpu/draft.h"
#include "cpu/kernels.h"

namespace kda {
namespace cpu {
namespace {

struct ConvUnit {
  const Problem& problem;
  const TargetFunctions& functions;
  const ConvLaunch& launch;
  const ConvBlock& block;
  const ConvScratch& scratch;

  std::byte* element(const TokenView& view, int64_t token) const {
    return view.data + (token * view.token_stride + block.first) * size_of(view.dtype);
  }
  void load_input(int64_t token, float* to) const {
    functions.widen(element(launch.x, token), launch.x.dtype, block.channels, to);
  }
  // taps: the newest W inputs, oldest first
  void step(const float* const* taps, int64_t token) const {
    ConvStepArgs args{.bias = launch.bias == nullptr ? nullptr : scratch.bias(),
                      .out = scratch.out(),
                      .width = problem.conv_width,
                      .channels = block.channels};
    for (int w = 0; w < problem.conv_width; ++w) {
      args.taps[w] = taps[w];
      args.weights[w] = scratch.weight(w);
    }
    functions.conv_step(args);
    functions.narrow(scratch.out(), block.channels, launch.out.dtype, element(launch.out, token));
  }
  void store_zeros(const Row& row) const {
    for (int64_t t = row.begin; t < row.end; ++t) {
      std::memset(element(launch.out, t), 0, block.channels * size_of(launch.out.dtype));
    }
  }
};

void extend_row(const ConvUnit& u, const Row& row) {
  const int width = u.problem.conv_width;
  load_window(u.problem, u.functions, u.launch.state, 0, row.source, u.block, u.scratch);
  // rows[0..W-1): the window, oldest first; the newest input goes to rows[W-1]. They rotate through a ring.
  float* rows[kMaxConvWidth];
  for (int w = 0; w + 1 < width; ++w) rows[w] = u.scratch.window(w);
  rows[width - 1] = u.scratch.input(0);
  int64_t snapshot = next_snapshot(u.launch.snapshots, row.index, 0);
  for (int64_t t = 0;; ++t) {
    if (snapshot == t) {
      for_snapshots(u.problem, u.launch.snapshots, u.launch.state, row.index, t, [&](int64_t slot) {
        store_window(u.problem, u.functions, rows, u.launch.snapshots.pool, 0, slot, u.block, u.scratch);
      });
      snapshot = next_snapshot(u.launch.snapshots, row.index, t + 1);
    }
    if (t == row.length()) break;
    u.load_input(row.begin + t, rows[width - 1]);
    u.step(rows, row.begin + t);
    float* oldest = rows[0];
    for (int w = 0; w + 1 < width; ++w) rows[w] = rows[w + 1];
    rows[width - 1] = oldest;
  }
  if (row.destination < 0) return;
  if (row.length() > 0) {
    store_window(u.problem, u.functions, rows, u.launch.dst, 0, row.destination, u.block, u.scratch);
  } else if (!(row.in_place && row.source >= 0)) {
    copy_window(u.problem, u.functions, u.launch.state, row.source, u.launch.dst, row.destination, 0, u.block,
                u.scratch);
  }
}

void record_row(const ConvUnit& u, const Row& row, const int16_t* parents) {
  const int64_t index = u.launch.record_rows.present() ? u.launch.record_rows.at(row.index) : row.index;
  if (!u.launch.records.present() || index < 0) return;
  const ConvRecordLayout layout = conv_record_layout(u.problem, u.launch.channels);
  std::byte* record = u.launch.records.base + index * u.launch.records.row_stride;
  const int nodes = static_cast<int>(row.length());
  if (u.block.first == 0) write_record_header(record, kConvRecordMagic, layout, parents, nodes);
  const int64_t size = size_of(u.problem.io);
  for (int node = 0; node < nodes; ++node) {
    std::memcpy(record + layout.nodes_begin + node * layout.node_bytes + u.block.first * size,
                u.element(u.launch.x, row.begin + node), u.block.channels * size);
  }
}

void verify_row(const ConvUnit& u, const Row& row, Lane& lane, const Execution& execution) {
  RecordPath pending;
  const std::byte* pending_record = nullptr;
  const uint32_t bad = read_pending(u.launch.pending, u.launch.records, kConvRecordMagic,
                                    conv_record_layout(u.problem, u.launch.channels), u.problem.max_nodes, row.index,
                                    pending_record, pending);
  if (bad != 0) {
    report_device_status(execution.device_status, bad);
    return u.store_zeros(row);
  }
  if (pending.length > 0) {
    const ConvCommitUnit commit{
        u.problem, u.functions,    u.block,           u.scratch,         lane, row, 0, u.launch.state, u.launch.dst,
        pending,   pending_record, u.launch.channels, u.launch.snapshots};
    commit_window(commit, true);
  } else {
    if (u.launch.pending.present() && u.launch.rows.dst_slots.present() && row.destination >= 0 &&
        !(row.in_place && row.source >= 0)) {
      copy_window(u.problem, u.functions, u.launch.state, row.source, u.launch.dst, row.destination, 0, u.block,
                  u.scratch);
    }
    load_window(u.problem, u.functions, u.launch.state, 0, row.source, u.block, u.scratch);
  }
  int16_t parents[kMaxDraftNodes];
  read_parents(u.problem, u.launch.draft, row, parents);
  const int width = u.problem.conv_width;
  for (int node = 0; node < static_cast<int>(row.length()); ++node) {
    u.load_input(row.begin + node, u.scratch.input(node));
    // A node's inputs: itself, its nearest ancestors, then the committed window from its newest end.
    const float* taps[kMaxConvWidth];
    int ancestor = node, window = width - 2;
    for (int w = width - 1; w >= 0; --w) {
      if (ancestor >= 0) {
        taps[w] = u.scratch.input(ancestor);
        ancestor = parents[ancestor];
      } else {
        taps[w] = u.scratch.window(window--);
      }
    }
    u.step(taps, row.begin + node);
  }
  record_row(u, row, parents);
}

template <class RunRow>
Status run_conv(const Problem& problem, const ConvLaunch& launch, const Execution& execution, const RunRow& run_row) {
  const TargetFunctions& functions = target_functions(execution.cpu_target);
  const ConvSplit split = split_conv(launch.rows.count, launch.channels, thread_count(execution));
  run_pieces(problem, execution, split.count(), [&](Lane& lane, int64_t piece) {
    const ConvBlock block = split.block(piece);
    const ConvScratch scratch(problem, lane);
    const ConvUnit unit{problem, functions, launch, block, scratch};
    load_weights(problem, functions, launch, block, scratch);
    for (int64_t r = split.first_row(piece); r < split.last_row(piece); ++r) {
      const Row row = resolve_row(problem, launch.rows, launch.state, launch.dst, r);
      if (row.null) {
        unit.store_zeros(row);
      } else {
        run_row(unit, row, lane);
      }
    }
  });
  return KDA_OK;
}

}  // namespace
}  // namespace cpu

Status cpu_conv_extend(const Problem& problem, const ConvLaunch& launch, const Execution& execution) {
  return cpu::run_conv(problem, launch, execution,
                       [](const cpu::ConvUnit& unit, const cpu::Row& row, cpu::Lane&) { cpu::extend_row(unit, row); });
}

Status cpu_conv_decode(const Problem& problem, const ConvLaunch& launch, const Execution& execution) {
  return cpu_conv_extend(problem, launch, execution);
}

Status cpu_conv_verify(const Problem& problem, const ConvLaunch& launch, const Execution& execution) {
  return cpu::run_conv(problem, launch, execution,
                       [&](const cpu::ConvUnit& unit, const cpu::Row& row, cpu::Lane& lane) {
                         cpu::verify_row(unit, row, lane, execution);
                       });
}

Status cpu_conv_verify_pending(const Problem& problem, const ConvLaunch& launch, const Execution& execution) {
  return cpu_conv_verify(problem, launch, execution);
}

}  // namespace kda
