// The short convolution: one thread a channel. A window is the W-1 inputs before a token, oldest first.
#pragma once

#include "cuda/device/draft.cuh"
#include "cuda/device/numerics.cuh"
#include "cuda/device/snapshots.cuh"

namespace kda::cuda {

constexpr int kConvThreads = 128;
constexpr int kMaxWindow = kMaxConvWidth - 1;

struct ConvArgs {
  ConvLaunch launch;
  int width;
  bool null_slot0, single_root, decode;
  int max_nodes;
  int slices;  // extend: blocks that share a row's tokens
  int channel_blocks;
  ConvRecordLayout record_layout;
  uint32_t* status;
};

struct ConvCommitArgs {
  ConvCommitLaunch launch;
  int width;
  bool null_slot0;
  int max_nodes;
  int channel_blocks;
  DType io;
  ConvRecordLayout record_layout;
  uint32_t* status;
};

// Slots 0..2 hold the window right-aligned: entry kMaxWindow-1 is the newest input, whatever W is.
struct ConvWindow {
  float x[kMaxWindow];
  __device__ void push(float value) {
#pragma unroll
    for (int i = 0; i + 1 < kMaxWindow; ++i) x[i] = x[i + 1];
    x[kMaxWindow - 1] = value;
  }
};

__device__ inline int64_t conv_element(const ConvPool& pool, int64_t slot, int w, int64_t channel) {
  return slot * pool.slot_stride + w * pool.window_stride + channel * pool.channel_stride;
}

__device__ inline ConvWindow load_conv_window(const ConvPool& pool, const std::byte* base, int64_t slot, int width,
                                              int64_t channel) {
  ConvWindow window{};
  const int skip = kMaxConvWidth - width;
#pragma unroll
  for (int i = 0; i < kMaxWindow; ++i) {
    if (slot >= 0 && i >= skip)
      window.x[i] = load_element(base, pool.dtype, conv_element(pool, slot, i - skip, channel));
  }
  return window;
}

__device__ inline void store_conv_window(const ConvWindow& window, const ConvPool& pool, std::byte* base, int64_t slot,
                                         int width, int64_t channel) {
  const int skip = kMaxConvWidth - width;
#pragma unroll
  for (int i = 0; i < kMaxWindow; ++i) {
    if (i >= skip) store_element(base, pool.dtype, conv_element(pool, slot, i - skip, channel), window.x[i]);
  }
}

// Taps (right-aligned like the window; the last meets the newest input) and bias of one channel.
struct ConvTaps {
  float w[kMaxConvWidth];
  float bias;
  __device__ void load(const ConvLaunch& c, int width, int64_t channel) {
    const int skip = kMaxConvWidth - width;
#pragma unroll
    for (int i = 0; i < kMaxConvWidth; ++i) {
      w[i] = i >= skip ? load_element(c.weight, c.weight_dtype, channel * c.weight_stride + i - skip) : 0.0f;
    }
    bias = c.bias != nullptr ? load_element(c.bias, c.weight_dtype, channel) : 0.0f;
  }
  // Sums from the oldest input to the newest, then bias and SiLU; taps before the window's start are skipped.
  __device__ float apply(const ConvWindow& window, float newest, int width) const {
    float sum = 0;
    const int skip = kMaxConvWidth - width;
#pragma unroll
    for (int i = 0; i < kMaxWindow; ++i) {
      if (i >= skip) sum = __fmaf_rn(w[i], window.x[i], sum);
    }
    sum = __fadd_rn(__fmaf_rn(w[kMaxWindow], newest, sum), bias);
    return __fmul_rn(sum, sigmoid(sum));
  }
};

__device__ inline void store_conv_snapshots(const ConvSnapshots& list, const ConvWindow& window, int64_t n,
                                            int64_t position, bool own, bool null_slot0, int layer, int width,
                                            int64_t channel, bool live) {
  for_snapshots_at(list, n, position, own, null_slot0, [&](int64_t slot) {
    if (live) store_conv_window(window, list.pool, layer_base(list.pool, layer), slot, width, channel);
  });
}

// An extend or decode row; block (row, slice, channels).
__global__ void __launch_bounds__(kConvThreads) conv_sequence_kernel(const __grid_constant__ ConvArgs a) {
  const ConvLaunch& c = a.launch;
  const int64_t channel = int64_t{blockIdx.x % a.channel_blocks} * kConvThreads + threadIdx.x;
  const int64_t rest = blockIdx.x / a.channel_blocks;
  const int slice = static_cast<int>(rest % a.slices);
  const int64_t n = rest / a.slices;
  const bool live = channel < c.channels;
  const bool first_block = blockIdx.x % a.channel_blocks == 0 && slice == 0;

  uint32_t bits = 0;
  const RowRange range = resolve_range(c.rows, n, a.decode ? 1 : INT64_MAX, bits);
  RowTarget target;
  if (!range.bad) target = resolve_target(c.rows, c.state, c.dst, a.null_slot0, n, bits);
  const bool own = same_pool(c.snapshots.pool, c.state);
  if (first_block && !range.bad && !target.null) {
    bits |= check_snapshots(c.snapshots, c.rows.count, n, own, a.null_slot0,
                            [&](int64_t position) { return position <= range.count; });
  }
  if (first_block && threadIdx.x == 0) raise_status(a.status, bits);
  if (range.bad) return;

  // slices hold at least W tokens, so that only the first reads the pool
  int64_t length = (range.count + a.slices - 1) / a.slices;
  if (length < kMaxConvWidth) length = kMaxConvWidth;
  const int64_t begin = slice * length;
  const int64_t end = begin + length < range.count ? begin + length : range.count;
  auto input = [&](int64_t t) {
    return load_element(c.x.data, c.x.dtype, (range.begin + t) * c.x.token_stride + channel);
  };
  auto put = [&](int64_t t, float value) {
    store_element(c.out.data, c.out.dtype, (range.begin + t) * c.out.token_stride + channel, value);
  };
  if (target.null) {
    for (int64_t t = begin; live && t < end; ++t) put(t, 0.0f);
    return;
  }
  if (slice > 0 && begin >= end) return;

  ConvWindow initial{}, window{};
  if (slice == 0) {
    if (live) initial = load_conv_window(c.state, c.state.base, target.slot, a.width, channel);
    window = initial;
  } else if (live) {
    for (int i = 0; i < kMaxWindow; ++i) window.push(input(begin - kMaxWindow + i));
  }
  if (live) {
    ConvTaps taps;
    taps.load(c, a.width, channel);
    for (int64_t t = begin; t < end; ++t) {
      const float x = input(t);
      put(t, taps.apply(window, x, a.width));
      window.push(x);
    }
  }
  if (slice > 0) return;
  // the window after `position` tokens, from the initial one and the inputs
  auto window_at = [&](int64_t position) {
    ConvWindow at{};
    for (int i = 0; live && i < kMaxWindow; ++i) {
      const int64_t t = position - kMaxWindow + i;
      at.push(t >= 0 ? input(t) : t == -1 ? initial.x[2] : t == -2 ? initial.x[1] : initial.x[0]);
    }
    return at;
  };
  if (present(c.snapshots.rows)) {
    for (int64_t at = next_snapshot(c.snapshots, n, -1); at <= range.count; at = next_snapshot(c.snapshots, n, at)) {
      store_conv_snapshots(c.snapshots, window_at(at), n, at, own, a.null_slot0, 0, a.width, channel, live);
    }
  }
  if (live && target.dst >= 0 && (range.count > 0 || !target.in_place || target.slot < 0)) {
    store_conv_window(window_at(range.count), c.dst, c.dst.base, target.dst, a.width, channel);
  }
}

// Applies a recorded path to a window; snapshots on the way.
__device__ inline void replay_conv(ConvWindow& window, const std::byte* record, const ConvRecordLayout& layout,
                                   uint64_t path, DType io, const ConvSnapshots& snapshots, int64_t n, bool own,
                                   bool null_slot0, int layer, int width, int64_t channel, bool live) {
  const uint64_t wanted = wanted_nodes(snapshots, n);
  for (; path != 0; path &= path - 1) {
    const int node = __ffsll(path) - 1;
    if (live) window.push(load_element(record + layout.nodes_begin + node * layout.node_bytes, io, channel));
    if (wanted >> node & 1) {
      store_conv_snapshots(snapshots, window, n, node, own, null_slot0, layer, width, channel, live);
    }
  }
}

// Verify, with or without a pending commit; block (row, channels).
__global__ void __launch_bounds__(kConvThreads) conv_verify_kernel(const __grid_constant__ ConvArgs a) {
  __shared__ DraftProgram program;
  const ConvLaunch& c = a.launch;
  const int64_t channel = int64_t{blockIdx.x % a.channel_blocks} * kConvThreads + threadIdx.x;
  const int64_t n = blockIdx.x / a.channel_blocks;
  const bool live = channel < c.channels;
  const bool first_block = blockIdx.x % a.channel_blocks == 0;

  uint32_t bits = 0;
  const RowRange range = resolve_range(c.rows, n, a.max_nodes, bits);
  RowTarget target;
  if (!range.bad) target = resolve_target(c.rows, c.state, c.dst, a.null_slot0, n, bits);
  const int count = static_cast<int>(range.count);
  bool null = target.null;
  if (!range.bad && !null) {
    if (threadIdx.x < kWarpLanes) {
      const bool ok = load_parents(program, c.draft, a.single_root, n, range.begin, count);
      if (threadIdx.x == 0) program.bad = !ok;
    }
    __syncthreads();
    if (program.bad) bits |= KDA_DEVICE_BAD_PARENT, null = true;
  }
  RecordedPath path;
  const std::byte* pending_row = nullptr;
  if (!range.bad && !null && present(c.pending.tips)) {
    const int64_t tip = index_at(c.pending.tips, n), record = index_at(c.pending.record_rows, n);
    if (tip >= 0 && record >= 0) {
      if (record >= c.records.rows) {
        path.bits = KDA_DEVICE_BAD_RECORD;
      } else {
        pending_row = c.records.base + record * c.records.row_stride;
        path = recorded_path(pending_row, a.record_layout, kConvRecordMagic, a.max_nodes, tip);
      }
      bits |= path.bits;
      null = path.bits != 0;
    }
  }
  std::byte* record = nullptr;
  if (!range.bad && !null && c.records.base != nullptr) {
    const int64_t row = present(c.record_rows) ? index_at(c.record_rows, n) : n;
    if (row >= c.records.rows) {
      bits |= KDA_DEVICE_BAD_ENTRY;
    } else if (row >= 0) {
      record = c.records.base + row * c.records.row_stride;
    }
  }
  const bool own = same_pool(c.snapshots.pool, c.state);
  if (first_block && !range.bad && !null && present(c.pending.tips)) {
    bits |= check_snapshots(c.snapshots, c.rows.count, n, own, a.null_slot0,
                            [&](int64_t node) { return node < a.max_nodes && (path.nodes >> node & 1) != 0; });
  }
  if (first_block && threadIdx.x == 0) raise_status(a.status, bits);
  if (range.bad) return;
  auto put = [&](int t, float value) {
    store_element(c.out.data, c.out.dtype, (range.begin + t) * c.out.token_stride + channel, value);
  };
  if (null) {
    for (int t = 0; live && t < count; ++t) put(t, 0.0f);
    return;
  }

  ConvWindow committed{};
  if (live) committed = load_conv_window(c.state, c.state.base, target.slot, a.width, channel);
  if (present(c.pending.tips)) {
    replay_conv(committed, pending_row, a.record_layout, path.nodes, c.x.dtype, c.snapshots, n, own, a.null_slot0, 0,
                a.width, channel, live);
    const bool stores = target.dst >= 0 && (pending_row != nullptr || !target.in_place);
    if (live && stores) store_conv_window(committed, c.dst, c.dst.base, target.dst, a.width, channel);
  }
  if (record != nullptr && first_block && threadIdx.x < kWarpLanes) {
    if (threadIdx.x == 0) {
      *reinterpret_cast<RecordHeader*>(record) = {kConvRecordMagic, a.record_layout.version_form, count,
                                                  a.record_layout.geometry};
    }
    RecordParent* parents = reinterpret_cast<RecordParent*>(record + sizeof(RecordHeader));
    for (int t = threadIdx.x; t < a.max_nodes; t += kWarpLanes) {
      parents[t] = {t < count ? program.parent[t] : -1, 0};
    }
  }
  if (!live) return;
  ConvTaps taps;
  taps.load(c, a.width, channel);
  auto input = [&](int t) { return load_element(c.x.data, c.x.dtype, (range.begin + t) * c.x.token_stride + channel); };
  for (int t = 0; t < count; ++t) {
    ConvWindow window;
    int node = t, committed_left = kMaxWindow;
#pragma unroll
    for (int i = kMaxWindow - 1; i >= 0; --i) {
      if (node >= 0) node = program.parent[node];
      float x = 0;
      if (node >= 0) {
        x = input(node);
      } else {
        --committed_left;
        x = committed_left == 2 ? committed.x[2] : committed_left == 1 ? committed.x[1] : committed.x[0];
      }
      window.x[i] = x;
    }
    const float x = input(t);
    put(t, taps.apply(window, x, a.width));
    if (record != nullptr) {
      store_element(record + a.record_layout.nodes_begin + t * a.record_layout.node_bytes, c.x.dtype, channel, x);
    }
  }
}

// Commit; block (row, channels) of layer blockIdx.y.
__global__ void __launch_bounds__(kConvThreads) conv_commit_kernel(const __grid_constant__ ConvCommitArgs a) {
  const ConvCommitLaunch& c = a.launch;
  const int layer = static_cast<int>(blockIdx.y);
  const int64_t channel = int64_t{blockIdx.x % a.channel_blocks} * kConvThreads + threadIdx.x;
  const int64_t n = blockIdx.x / a.channel_blocks;
  const bool live = channel < c.channels;
  const bool first_block = blockIdx.x % a.channel_blocks == 0;

  uint32_t bits = 0;
  const RowTarget target = resolve_target(c.rows, c.state, c.dst, a.null_slot0, n, bits);
  int64_t tip = index_at(c.tips, n);
  RecordedPath path;
  const std::byte* record = nullptr;
  if (!target.null && tip >= 0) {
    const int64_t row = present(c.record_rows) ? index_at(c.record_rows, n) : n;
    if (row < 0) tip = -1;
    if (row >= c.records.rows) {
      path.bits = KDA_DEVICE_BAD_RECORD;
    } else if (row >= 0) {
      record = layer_base(c.records, layer) + row * c.records.row_stride;
      path = recorded_path(record, a.record_layout, kConvRecordMagic, a.max_nodes, tip);
    }
    bits |= path.bits;
  }
  const bool own = same_pool(c.snapshots.pool, c.state);
  if (first_block && layer == 0 && !target.null && path.bits == 0) {
    bits |= check_snapshots(c.snapshots, c.rows.count, n, own, a.null_slot0,
                            [&](int64_t node) { return node < a.max_nodes && (path.nodes >> node & 1) != 0; });
  }
  if (first_block && threadIdx.x == 0) raise_status(a.status, bits);
  if (target.null || path.bits != 0) return;
  ConvWindow window{};
  if (live) window = load_conv_window(c.state, layer_base(c.state, layer), target.slot, a.width, channel);
  replay_conv(window, record, a.record_layout, path.nodes, a.io, c.snapshots, n, own, a.null_slot0, layer, a.width,
              channel, live);
  if (live && target.dst >= 0 && (tip >= 0 || !target.in_place)) {
    store_conv_window(window, c.dst, layer_base(c.dst, layer), target.dst, a.width, channel);
  }
}

}  // namespace kda::cuda
