// Commit: the recorded path from root to tip, replayed on the committed state; several layers a launch.
#pragma once

#include "cuda/device/draft.cuh"
#include "cuda/device/snapshots.cuh"
#include "cuda/device/tile.cuh"

namespace kda::cuda {

struct CommitArgs {
  Rows rows;
  IndexView tips;
  StatePool state, dst;
  RecordBuffer records;
  IndexView record_rows;
  StateSnapshots snapshots;
  Form form;
  RecordLayout record_layout;
  BlockGrid grid;
  uint32_t* status;
};

constexpr int kCommitNodes = 8;  // prepared at a time

// General: snapshots, pools of any alignment, a destination of another dtype.
template <class Tile, int W, int Blocks, bool General>
__global__ void __launch_bounds__(W* kWarp, Blocks) commit_kernel(const __grid_constant__ CommitArgs a) {
  constexpr int KP = Tile::KP, R = Tile::R;
  using Vectors = typename Tile::Vectors;
  constexpr int kBlockRows = W * Tile::kRows;
  __shared__ __align__(16) float vectors[kCommitNodes * Vectors::kFloats];
  __shared__ __align__(16) float u_tile[kCommitNodes * kBlockRows];
  wait_for_previous_kernel();
  const Form& f = a.form;
  const int layer = static_cast<int>(blockIdx.y);
  const auto [n, hv, split] = block_place(a.grid);
  const int block_row = split * kBlockRows;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int v0 = Tile::first_row(block_row + warp * Tile::kRows);
  const bool first_block = hv == 0 && split == 0 && layer == 0;

  uint32_t bits = 0;
  const RowTarget target = resolve_target(a.rows, a.state, a.dst, f.null_slot0, n, bits);
  int64_t tip = index_at(a.tips, n), record = 0;
  if (!target.null && tip >= 0) {
    record = present(a.record_rows) ? index_at(a.record_rows, n) : n;
    if (record < 0) tip = -1;  // no record: nothing to commit
    if (record >= a.records.rows) bits |= KDA_DEVICE_BAD_RECORD;
  }
  if (target.null || (bits & KDA_DEVICE_BAD_RECORD)) {
    if (first_block && threadIdx.x == 0) raise_status(a.status, bits);
    return;
  }
  auto head_of = [&](const StatePool& pool, int64_t slot) {
    return slot_address(pool, layer_base(pool, layer), slot) +
           hv * int64_t{f.K} * f.V * (pool.dtype == DType::fp32 ? 4 : 2);
  };
  const bool stores = target.dst >= 0 && (tip >= 0 || !target.in_place);
  Tile tile;
  if (target.slot < 0) {
    tile.zero();
  } else if (stores || (General && present(a.snapshots.rows))) {
    tile.load(head_of(a.state, target.slot), f, v0);
  }

  RecordedPath path;
  const std::byte* row = nullptr;
  if (tip >= 0) {
    row = layer_base(a.records, layer) + record * a.records.row_stride;
    path = recorded_path(row, a.record_layout, kRecordMagic, f.max_nodes, tip);
    bits |= path.bits;
    if (path.bits != 0) {  // a record may be bad in one layer only, so every layer reports
      if (hv == 0 && split == 0 && threadIdx.x == 0) raise_status(a.status, bits);
      return;
    }
  }
  const bool own_snapshots = same_pool(a.snapshots.pool, a.state);
  uint64_t wanted = 0;
  if constexpr (General) {
    wanted = wanted_nodes(a.snapshots, n);
    if (first_block) {
      bits |= check_snapshots(a.snapshots, a.rows.count, n, own_snapshots, f.null_slot0,
                              [&](int64_t node) { return node < f.max_nodes && (path.nodes >> node & 1) != 0; });
    }
  }
  bool stored = !stores;
  for (uint64_t nodes = path.nodes; nodes != 0;) {
    if (nodes != path.nodes) __syncthreads();
    uint64_t rest = nodes;
    for (int i = 0; i < kCommitNodes && rest != 0; ++i, rest &= rest - 1) {
      if (i % W != warp) continue;
      const std::byte* node = row + a.record_layout.nodes_begin + (__ffsll(rest) - 1) * a.record_layout.node_bytes;
      const float* u = reinterpret_cast<const float*>(node) + int64_t{hv} * f.V + block_row;
#pragma unroll
      for (int x = lane; x < kBlockRows; x += kWarp) {
        u_tile[i * kBlockRows + x] = !General || block_row + x < f.V ? u[x] : 0.0f;
      }
      restore_token<KP>(node, a.record_layout.decay, a.record_layout.k, a.record_layout.k_rnorm, f, hv,
                        Vectors{vectors + i * Vectors::kFloats});
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < kCommitNodes && nodes != 0; ++i, nodes &= nodes - 1) {
      const Vectors token{vectors + i * Vectors::kFloats};
      float u[R];
      load_rows<R>(u_tile + i * kBlockRows + v0 - block_row, u);
      if constexpr (General) {
        const auto store_next = [&](std::byte* head, DType dtype) { tile.store_updated(token, u, head, dtype, f, v0); };
        const int node = __ffsll(nodes) - 1;
        if (wanted >> node & 1) {
          for_snapshots_at(a.snapshots, n, node, own_snapshots, f.null_slot0,
                           [&](int64_t slot) { store_next(head_of(a.snapshots.pool, slot), a.snapshots.pool.dtype); });
        }
        if (stores && (nodes & (nodes - 1)) == 0) {
          store_next(head_of(a.dst, target.dst), a.dst.dtype);
          stored = true;
        }
      }
      tile.update(token, u);
    }
  }
  if (!stored) tile.store(head_of(a.dst, target.dst), a.dst.dtype, f, v0);
  if (first_block && threadIdx.x == 0) raise_status(a.status, bits);
}

}  // namespace kda::cuda
