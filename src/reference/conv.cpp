// The short convolution: depthwise, causal, with bias and SiLU, and its windows of the last W-1 inputs.
#include "reference/kernels.h"
#include "reference/records.h"

namespace kda {

using namespace reference;

namespace {

constexpr int kMaxWindow = kMaxConvWidth - 1;

// The W-1 newest inputs of one channel, oldest first.
struct Window {
  double x[kMaxWindow];
};

int64_t window_at(const Problem& problem, const ConvPool& pool, int64_t slot, int w, int64_t c) {
  if (planted(Fault::conv_layout_ignored)) return slot * pool.slot_stride + w * problem.conv_channels() + c;
  const int64_t compact = (problem.conv_width - 1) * problem.conv_channels();
  return slot * (planted(Fault::slot_stride_ignored) ? compact : pool.slot_stride) + w * pool.window_stride +
         c * pool.channel_stride;
}

Window load_window(const Problem& problem, const ConvPool& pool, int layer, int64_t slot, int64_t channel) {
  Window window{};
  if (slot == kNoSlot) return window;
  for (int w = 0; w < problem.conv_width - 1; ++w)
    window.x[w] = load(pool.dtype, pool.layer_base(layer), window_at(problem, pool, slot, w, channel));
  return window;
}

void store_window(const Problem& problem, const Window& window, const ConvPool& pool, int layer, int64_t slot,
                  int64_t channel) {
  for (int w = 0; w < problem.conv_width - 1; ++w)
    store(pool.dtype, pool.layer_base(layer), window_at(problem, pool, slot, w, channel), window.x[w]);
}

void push(const Problem& problem, double x, Window* window) {
  const int last = problem.conv_width - 2;
  for (int w = 0; w < last; ++w) window->x[w] = window->x[w + 1];
  window->x[last] = x;
}

double input(const ConvLaunch& launch, int64_t token, int64_t channel) {
  return load(launch.x.dtype, launch.x.data, token * launch.x.token_stride + channel);
}

// Meets the window with taps 0..W-2 and the newest input with tap W-1.
void write_conv(const Problem& problem, const ConvLaunch& launch, const Window& window, int64_t token,
                int64_t channel) {
  const int W = problem.conv_width;
  double sum = 0;
  for (int w = 0; w < W; ++w) {
    const double tap = load(launch.weight_dtype, launch.weight, channel * launch.weight_stride + w);
    sum += tap * (w < W - 1 ? window.x[w] : input(launch, token, channel));
  }
  if (launch.bias != nullptr && !planted(Fault::conv_bias_dropped))
    sum += load(launch.weight_dtype, launch.bias, channel);
  store(launch.out.dtype, launch.out.data, token * launch.out.token_stride + channel, sum / (1 + std::exp(-sum)));
}

void write_zero_conv(const ConvLaunch& launch, int64_t begin, int64_t end) {
  if (planted(Fault::null_out_not_written)) return;
  for (int64_t token = begin; token < end; ++token)
    for (int64_t c = 0; c < launch.channels; ++c)
      store(launch.out.dtype, launch.out.data, token * launch.out.token_stride + c, 0);
}

void store_snapshots(const Problem& problem, const ConvSnapshots& list, const ConvPool& own, int layer, int64_t row,
                     int64_t position, int64_t channel, const Window& window) {
  for (int64_t i = 0; i < list.count(); ++i) {
    if (list.rows.at(i) != row || list.positions.at(i) != position) continue;
    const int64_t slot = list.slots.at(i);
    if (!is_skipped(problem, slot, list.pool, own)) store_window(problem, window, list.pool, layer, slot, channel);
  }
}

void copy_window_bits(const Problem& problem, const ConvPool& from, int64_t source, const ConvPool& to, int64_t target,
                      int layer, int64_t channel) {
  for (int w = 0; w < problem.conv_width - 1; ++w) {
    const int64_t bytes = size_of(from.dtype);
    std::memmove(to.layer_base(layer) + window_at(problem, to, target, w, channel) * bytes,
                 from.layer_base(layer) + window_at(problem, from, source, w, channel) * bytes, size_t(bytes));
  }
}

// The final window of a row without tokens is its initial window.
void carry_window(const Problem& problem, const ConvPool& state, int64_t source, const ConvPool& dst, int64_t target,
                  int layer, int64_t channel) {
  if (target == kNoSlot) return;
  if (source != kNoSlot && source == target && same_pool(state, dst)) return;
  if (source != kNoSlot && state.dtype == dst.dtype) {
    copy_window_bits(problem, state, source, dst, target, layer, channel);
  } else {
    store_window(problem, load_window(problem, state, layer, source, channel), dst, layer, target, channel);
  }
}

void extend_channel(const Problem& problem, const ConvLaunch& launch, int64_t row, int64_t channel) {
  const int64_t begin = token_begin(launch.rows, row), end = token_end(launch.rows, row);
  const int64_t source = source_slot(launch.rows, row);
  const int64_t target = final_slot(problem, launch.rows, row, launch.dst, launch.state);
  Window window = load_window(problem, launch.state, 0, source, channel);
  store_snapshots(problem, launch.snapshots, launch.state, 0, row, 0, channel, window);
  for (int64_t token = begin; token < end; ++token) {
    if (planted(Fault::conv_window_off_by_one)) push(problem, input(launch, token, channel), &window);
    write_conv(problem, launch, window, token, channel);
    if (planted(Fault::conv_window_not_shifted) && end - begin < problem.conv_width - 1) window = {};
    if (!planted(Fault::conv_window_off_by_one)) push(problem, input(launch, token, channel), &window);
    const int64_t position = token - begin + (planted(Fault::snapshot_one_late) ? 0 : 1);
    store_snapshots(problem, launch.snapshots, launch.state, 0, row, position, channel, window);
  }
  if (begin == end) {
    carry_window(problem, launch.state, source, launch.dst, target, 0, channel);
  } else if (target != kNoSlot) {
    store_window(problem, window, planted(Fault::dst_ignored) ? launch.state : launch.dst, 0, target, channel);
  }
}

struct ConvCommitTarget {
  ConvPool state, dst;
  ConvSnapshots snapshots;
  RecordBuffer records;
  int layer = 0;
};

// The committed window after an accepted path, stored where the row's final window goes.
Window commit_channel(const Problem& problem, const Rows& rows, int64_t row, const Path& path, int64_t record_row,
                      const ConvCommitTarget& target, const ConvRecordLayout& layout, int64_t channel) {
  Window window = load_window(problem, target.state, target.layer, source_slot(rows, row), channel);
  if (path.count == 0) return window;
  const std::byte* record = target.records.layer_base(target.layer) + record_row * target.records.row_stride;
  for (int i = 0; i < path.count; ++i) {
    const int64_t node = path.nodes[i];
    push(problem, load(problem.io, record + layout.nodes_begin + node * layout.node_bytes, channel), &window);
    store_snapshots(problem, target.snapshots, target.state, target.layer, row, node, channel, window);
  }
  const int64_t slot = final_slot(problem, rows, row, target.dst, target.state);
  if (slot != kNoSlot)
    store_window(problem, window, planted(Fault::dst_ignored) ? target.state : target.dst, target.layer, slot, channel);
  return window;
}

void verify_channel(const Problem& problem, const ConvLaunch& launch, int64_t begin, int64_t nodes, const int* parents,
                    const Window& committed, int64_t channel) {
  Window windows[kMaxDraftNodes + 1];  // what each node starts from: committed, then after every node
  windows[0] = committed;
  for (int64_t node = 0; node < nodes; ++node) {
    const Window& before = windows[(planted(Fault::conv_chain_on_tree) ? node - 1 : parents[node]) + 1];
    write_conv(problem, launch, before, begin + node, channel);
    windows[node + 1] = before;
    push(problem, input(launch, begin + node, channel), &windows[node + 1]);
  }
}

}  // namespace

Status reference_conv_extend(const Problem& problem, const ConvLaunch& launch, const Execution&) {
  for (int64_t row = 0; row < launch.rows.count; ++row) {
    if (is_null(problem, launch.rows, row)) {
      write_zero_conv(launch, token_begin(launch.rows, row), token_end(launch.rows, row));
      continue;
    }
    for (int64_t c = 0; c < launch.channels; ++c) extend_channel(problem, launch, row, c);
  }
  return KDA_OK;
}

Status reference_conv_decode(const Problem& problem, const ConvLaunch& launch, const Execution& execution) {
  return reference_conv_extend(problem, launch, execution);
}

Status reference_conv_verify(const Problem& problem, const ConvLaunch& launch, const Execution& execution) {
  const ConvRecordLayout layout = conv_record_layout(problem, launch.channels);
  const ConvCommitTarget target{launch.state, launch.dst, launch.snapshots, launch.records, 0};
  for (int64_t row = 0; row < launch.rows.count; ++row) {
    const int64_t begin = token_begin(launch.rows, row), end = token_end(launch.rows, row);
    bool runs = !is_null(problem, launch.rows, row);
    Path pending;
    int64_t pending_record_row = -1;
    if (runs && launch.pending.present() && !planted(Fault::pending_not_applied)) {
      const int64_t tip = launch.pending.tips.at(row);
      pending_record_row = committed_record_row_of(launch.pending.record_rows, row);
      if (tip >= 0 && pending_record_row >= 0) {
        const std::byte* record = launch.records.base + pending_record_row * launch.records.row_stride;
        runs = read_path(problem, layout, kConvRecordMagic, record, tip, execution, &pending);
      }
    }
    if (!runs) {
      write_zero_conv(launch, begin, end);
      continue;
    }
    int parents[kMaxDraftNodes];
    for (int64_t node = 0; node < end - begin; ++node)
      parents[node] = static_cast<int>(parent_of(problem, launch.draft, begin, row, node));
    for (int64_t c = 0; c < launch.channels; ++c) {
      const Window committed =
          commit_channel(problem, launch.rows, row, pending, pending_record_row, target, layout, c);
      verify_channel(problem, launch, begin, end - begin, parents, committed, c);
      if (launch.pending.present() && pending.count == 0 && launch.rows.dst_slots.present()) {
        carry_window(problem, launch.state, source_slot(launch.rows, row), launch.dst,
                     final_slot(problem, launch.rows, row, launch.dst, launch.state), 0, c);
      }
    }
    const int64_t record_row = record_row_of(launch.record_rows, row);
    if (!launch.records.present() || record_row < 0) continue;
    std::byte* record = launch.records.base + record_row * launch.records.row_stride;
    write_header(record, kConvRecordMagic, layout.version_form, layout.geometry, end - begin);
    for (int64_t node = 0; node < end - begin; ++node) {
      write_parent(record, node, parents[node]);
      for (int64_t c = 0; c < launch.channels; ++c)
        store(problem.io, record + layout.nodes_begin + node * layout.node_bytes, c, input(launch, begin + node, c));
    }
  }
  return KDA_OK;
}

Status reference_conv_verify_pending(const Problem& problem, const ConvLaunch& launch, const Execution& execution) {
  return reference_conv_verify(problem, launch, execution);
}

Status reference_conv_commit(const Problem& problem, const ConvCommitLaunch& launch, const Execution& execution) {
  const ConvRecordLayout layout = conv_record_layout(problem, launch.channels);
  for (int layer = 0; layer < launch.layers; ++layer) {
    const ConvCommitTarget target{launch.state, launch.dst, launch.snapshots, launch.records, layer};
    for (int64_t row = 0; row < launch.rows.count; ++row) {
      if (is_null(problem, launch.rows, row)) continue;
      const int64_t tip = launch.tips.at(row), record_row = committed_record_row_of(launch.record_rows, row);
      if (tip < 0 || record_row < 0) {
        if (!launch.rows.dst_slots.present()) continue;
        const int64_t slot = final_slot(problem, launch.rows, row, launch.dst, launch.state);
        for (int64_t c = 0; c < launch.channels; ++c)
          carry_window(problem, launch.state, source_slot(launch.rows, row), launch.dst, slot, layer, c);
        continue;
      }
      const std::byte* record = launch.records.layer_base(layer) + record_row * launch.records.row_stride;
      Path path;
      if (!read_path(problem, layout, kConvRecordMagic, record, tip, execution, &path)) continue;
      for (int64_t c = 0; c < launch.channels; ++c)
        commit_channel(problem, launch.rows, row, path, record_row, target, layout, c);
    }
  }
  return KDA_OK;
}

}  // namespace kda
