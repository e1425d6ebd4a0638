// The exact recurrence over one row's tokens: extend and verify, with or without a pending commit. A block of W warps
// keeps 4*R*W rows of one head's state in registers; prepared tokens pass through shared memory in tiles.
#pragma once

#include "cuda/device/draft.cuh"
#include "cuda/device/snapshots.cuh"
#include "cuda/device/tile.cuh"

namespace kda::cuda {

constexpr int kTokenTile = 8;

struct SequenceArgs {
  TokenInputs tokens;
  Rows rows;
  StatePool state, dst;
  StateSnapshots snapshots;  // extend: by position; verify: of the pending commit, by node
  Form form;
  RecordLayout record_layout;
  bool verify;
  bool stepped_positions;  // snapshot positions are multiples of kFastSnapshotStep, or the row's end
  bool keep_initial;       // shared memory holds the state that restarts begin from
  Draft draft;
  RecordBuffer records;
  IndexView record_rows;
  std::byte* node_states;
  DType node_states_dtype;
  int64_t node_states_rows, node_states_nodes, node_states_row_stride, node_states_node_stride;
  IndexView node_slots;
  StatePool node_pool;
  PendingCommit pending;
  int splits;  // blocks that share one head's rows
  uint32_t* status;
};

template <int KP, int R, int W>
struct SequenceShared {
  static constexpr int kThreads = W * kWarp;
  static constexpr int kBlockRows = W * 4 * R;
  static constexpr int kVectorFloats = kTokenTile * TokenVectors<KP>::kFloats;
  static constexpr int kValueFloats = kTokenTile * kBlockRows;
  static int64_t bytes(int u_nodes, bool keep_initial) {
    const int64_t u_rows = u_nodes > kTokenTile ? u_nodes : kTokenTile;
    return 4 *
           (kVectorFloats + kValueFloats + u_rows * kBlockRows + (keep_initial ? int64_t{kThreads} * R * KP / 8 : 0));
  }
};

// Applies the recorded nodes of `path` to the tile. `after(node)` runs after each of them. Where steps round, the last
// node's state is left unrounded, as decode has it before it stores.
template <class Tile, int KP, int R, int W, class After>
__device__ inline void replay_records(Tile& tile, const std::byte* row, const RecordLayout& layout, uint64_t path,
                                      int hv, const Form& f, int block_row, float* vectors, float* u_tile,
                                      const After& after) {
  constexpr int kBlockRows = W * 4 * R;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int local_row = warp * Tile::kRows + Tile::group() * R;
  bool round = false;
  while (path != 0) {
    __syncthreads();
    uint64_t rest = path;
    for (int i = 0; i < kTokenTile && rest != 0; ++i, rest &= rest - 1) {
      if (i % W != warp) continue;
      const std::byte* node = row + layout.nodes_begin + (__ffsll(rest) - 1) * layout.node_bytes;
      prepare_recorded<KP, Tile::Vec>(node, layout.decay, layout.k, layout.k_rnorm, f, hv,
                                      TokenVectors<KP>{vectors + i * TokenVectors<KP>::kFloats});
      const float* u = reinterpret_cast<const float*>(node) + int64_t{hv} * f.V + block_row;
      for (int x = lane; x < kBlockRows; x += kWarp) u_tile[i * kBlockRows + x] = block_row + x < f.V ? u[x] : 0.0f;
    }
    __syncthreads();
    for (int i = 0; i < kTokenTile && path != 0; ++i, path &= path - 1) {
      float u[R];
#pragma unroll
      for (int r = 0; r < R; ++r) u[r] = u_tile[i * kBlockRows + local_row + r];
      if (round) tile.round_bf16();
      round = f.round_steps;
      tile.replay(TokenVectors<KP>{vectors + i * TokenVectors<KP>::kFloats}, u);
      after(__ffsll(path) - 1);
    }
  }
}

// AnyIo serves everything; with FixedIo there are also no snapshots and no stored node states, and the pools are
// 16-byte aligned and of one dtype.
template <class T, StateLayout Layout, int KP, int R, int W, class Io>
__global__ void __launch_bounds__(W* kWarp, R* KP >= 1024   ? 2
                                            : W == 8        ? 2
                                            : Io::kFixed    ? 4
                                            : R * KP >= 512 ? 2
                                                            : 3)
    sequence_kernel(const __grid_constant__ SequenceArgs a) {
  constexpr bool General = !Io::kFixed;
  using Tile = StateTile<T, Layout, KP, R, General>;
  using Shared = SequenceShared<KP, R, W>;
  constexpr int kBlockRows = Shared::kBlockRows;
  constexpr int E = Tile::E;
  constexpr int kValueChunks = (kBlockRows + 127) / 128;
  extern __shared__ __align__(16) float shared[];
  __shared__ DraftProgram program;
  float* const vectors = shared;
  float* const values = vectors + Shared::kVectorFloats;
  float* const u_rows = values + Shared::kValueFloats;
  const int u_nodes = a.verify && a.form.max_nodes > kTokenTile ? a.form.max_nodes : kTokenTile;
  float4* const initial = reinterpret_cast<float4*>(u_rows + u_nodes * kBlockRows) + threadIdx.x;

  wait_for_previous_kernel();
  const Form& f = a.form;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int split = static_cast<int>(blockIdx.x % a.splits);
  const int64_t unit = blockIdx.x / a.splits;
  const int64_t n = unit / f.HV;
  const int hv = static_cast<int>(unit % f.HV);
  const int block_row = split * kBlockRows;
  const int warp_row = block_row + warp * Tile::kRows;
  const int v0 = Tile::first_row(warp_row);
  const int local_row = v0 - block_row;
  const int64_t head_elements = int64_t{f.K} * f.V;
  const bool first_block = hv == 0 && split == 0;

  uint32_t bits = 0;
  const RowRange range = resolve_range(a.rows, n, a.verify ? f.max_nodes : INT64_MAX, bits);
  RowTarget target;
  if (!range.bad) target = resolve_target(a.rows, a.state, a.dst, f.null_slot0, n, bits);
  if (!present(a.rows.dst_slots) && a.verify && !present(a.pending.tips)) target.dst = -1;
  const int count = static_cast<int>(range.count);

  auto head_of = [&](const StatePool& pool, int64_t slot) {
    return slot_address(pool, pool.base, slot) + hv * head_elements * (pool.dtype == DType::fp32 ? 4 : 2);
  };
  auto give_zeros = [&] {
    for (int64_t i = threadIdx.x; i < range.count * kBlockRows; i += Shared::kThreads) {
      const int v = block_row + static_cast<int>(i % kBlockRows);
      if (v >= f.V) continue;
      const int64_t t = range.begin + i / kBlockRows;
      store_element(a.tokens.out.data, Io::token(a.tokens.out.dtype),
                    t * a.tokens.out.token_stride + hv * a.tokens.out.head_stride + v, 0.0f);
    }
  };
  if (range.bad || target.null) {
    if (first_block && threadIdx.x == 0) raise_status(a.status, bits);
    if (!range.bad) give_zeros();
    return;
  }

  Tile tile;
  if (target.slot >= 0) {
    tile.load(head_of(a.state, target.slot), f, v0);
  } else {
    tile.zero();
  }

  const bool node_stores = General && (a.node_states != nullptr || present(a.node_slots));
  const bool draft = a.verify && present(a.draft.parents);
  int steps = count;
  if (draft) {
    if (warp == 0) {
      const bool ok = load_parents(program, a.draft, f.single_root, n, range.begin, count);
      if (lane == 0) program.bad = !ok;
      if (ok) order_draft(program, count);
    }
    __syncthreads();
    steps = program.steps;
    if (program.bad) bits |= KDA_DEVICE_BAD_PARENT;
  }

  const bool own_snapshots = same_pool(a.snapshots.pool, a.state);
  auto store_snapshots = [&](int64_t position) {
    if constexpr (General) {
      for_snapshots_at(a.snapshots, n, position, own_snapshots, f.null_slot0, [&](int64_t slot) {
        tile.store(head_of(a.snapshots.pool, slot), a.snapshots.pool.dtype, f, v0);
      });
    }
  };

  RecordedPath path;
  const std::byte* pending_row = nullptr;
  if (a.verify && present(a.pending.tips) && (bits & KDA_DEVICE_BAD_PARENT) == 0) {
    const int64_t tip = index_at(a.pending.tips, n), record = index_at(a.pending.record_rows, n);
    if (tip >= 0 && record >= 0) {
      if (record >= a.records.rows) {
        path.bits = KDA_DEVICE_BAD_RECORD;
      } else {
        pending_row = a.records.base + record * a.records.row_stride;
        path = recorded_path(pending_row, a.record_layout, kRecordMagic, f.max_nodes, tip);
      }
    }
    bits |= path.bits;
  }
  if (bits & (KDA_DEVICE_BAD_PARENT | KDA_DEVICE_BAD_RECORD | KDA_DEVICE_BAD_TIP)) {  // the row is null
    if (first_block && threadIdx.x == 0) raise_status(a.status, bits);
    give_zeros();
    return;
  }

  if (a.verify && present(a.pending.tips)) {
    uint64_t wanted = 0;
    if constexpr (General) wanted = wanted_nodes(a.snapshots, n);
    replay_records<Tile, KP, R, W>(tile, pending_row, a.record_layout, path.nodes, hv, f, block_row, vectors, u_rows,
                                   [&](int node) {
                                     if (wanted >> node & 1) store_snapshots(node);
                                   });
    if (pending_row == nullptr && target.in_place) target.dst = -1;
    if (target.dst >= 0) tile.store(head_of(a.dst, target.dst), a.dst.dtype, f, v0);
    if (f.round_steps) tile.round_bf16();
    if (General && first_block) {
      bits |= check_snapshots(a.snapshots, a.rows.count, n, own_snapshots, f.null_slot0,
                              [&](int64_t node) { return node < f.max_nodes && (path.nodes >> node & 1) != 0; });
    }
    __syncthreads();  // the tiles in shared memory are free again
  }

  // records of this call
  std::byte* record = nullptr;
  if (a.verify && a.records.base != nullptr) {
    const int64_t row = present(a.record_rows) ? index_at(a.record_rows, n) : n;
    if (row >= a.records.rows) {
      bits |= KDA_DEVICE_BAD_ENTRY;
    } else if (row >= 0) {
      record = a.records.base + row * a.records.row_stride;
    }
  }
  if (record != nullptr && first_block && warp == 0) {
    if (lane == 0) {
      *reinterpret_cast<RecordHeader*>(record) = {kRecordMagic, a.record_layout.version_form, count,
                                                  a.record_layout.geometry};
    }
    RecordParent* parents = reinterpret_cast<RecordParent*>(record + sizeof(RecordHeader));
    for (int t = lane; t < f.max_nodes; t += kWarp)
      parents[t] = {t < count ? (draft ? program.parent[t] : t - 1) : -1, 0};
  }

  if (draft && program.restarts > 0 && a.keep_initial) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int c = 0; c < E / 4; ++c) {
        initial[(r * E / 4 + c) * Shared::kThreads] =
            make_float4(tile.s[r][4 * c], tile.s[r][4 * c + 1], tile.s[r][4 * c + 2], tile.s[r][4 * c + 3]);
      }
    }
  }

  int64_t next_stop = kNoStop;
  if (General && !a.verify && present(a.snapshots.rows)) {
    next_stop = next_snapshot(a.snapshots, n, -1);
    if (first_block) {
      bits |= check_snapshots(a.snapshots, a.rows.count, n, own_snapshots, f.null_slot0, [&](int64_t position) {
        return position <= count && (!a.stepped_positions || position % kFastSnapshotStep == 0 || position == count);
      });
    }
    if (next_stop == 0) {
      store_snapshots(0);
      next_stop = next_snapshot(a.snapshots, n, 0);
    }
  }

  const bool round_steps = pinned(f.round_steps) != 0, has_record = pinned(record != nullptr) != 0;
  for (int first = 0; first < steps; first += kTokenTile) {
    const int tile_steps = steps - first < kTokenTile ? steps - first : kTokenTile;
    if (first > 0) __syncthreads();
    constexpr int kOwn = kTokenTile / W;  // steps that a warp prepares
    TokenLoads<Io, KP> loads[kOwn];
    Raw4 raw_values[kOwn][kValueChunks];
    auto node_of = [&](int i) { return draft ? int{program.node[first + i]} : first + i; };
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      const int i = warp + own * W;
      if (i >= tile_steps) continue;
      const int64_t t = range.begin + node_of(i);
      loads[own].load(a.tokens, f, t, hv);
      const int64_t v_offset = t * a.tokens.v.token_stride + hv * a.tokens.v.head_stride + block_row;
#pragma unroll
      for (int c = 0; c < kValueChunks; ++c) {
        const int x = 128 * c + 4 * lane;
        raw_values[own][c] = {};
        if (x < kBlockRows && (Io::kFixed || block_row + x < f.V)) {
          raw_values[own][c] = load4_raw<Io::kFixed>(a.tokens.v.data, Io::token(a.tokens.v.dtype), v_offset + x);
        }
      }
    }
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      const int i = warp + own * W;
      if (i >= tile_steps) continue;
      const int node = node_of(i);
      const bool fresh = !draft || (program.mode[first + i] & DraftProgram::kReplay) == 0;
      RecordTargets targets;
      if (record != nullptr && split == 0 && fresh) {
        std::byte* const at = record + a.record_layout.nodes_begin + node * a.record_layout.node_bytes;
        const int h = hv / f.heads_ratio;
        targets.decay = at + a.record_layout.decay + int64_t{hv} * f.K * (f.fp16_decay ? 2 : 4);
        if (hv % f.heads_ratio == 0) {
          targets.k = at + a.record_layout.k + int64_t{h} * f.K * (f.io == DType::fp32 ? 4 : 2);
          targets.k_rnorm = reinterpret_cast<NormFactor*>(at + a.record_layout.k_rnorm) + h;
        }
      }
      finish_token<Io, KP, Tile::Vec>(loads[own], a.tokens, f,
                                      TokenVectors<KP>{vectors + i * TokenVectors<KP>::kFloats}, targets);
#pragma unroll
      for (int c = 0; c < kValueChunks; ++c) {
        const int x = 128 * c + 4 * lane;
        if (x < kBlockRows) {
          *reinterpret_cast<float4*>(values + i * kBlockRows + x) =
              to_float4(raw_values[own][c], Io::token(a.tokens.v.dtype));
        }
      }
    }
    __syncthreads();

    if (warp_row >= f.V) continue;
    for (int i = 0; i < tile_steps; ++i) {
      const TokenVectors<KP> token{vectors + i * TokenVectors<KP>::kFloats};
      const int node = draft ? program.node[first + i] : first + i;
      const int mode = draft ? program.mode[first + i] : (a.verify && node == count - 1 ? DraftProgram::kLeaf : 0);
      if (mode & DraftProgram::kRestart) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
          for (int c = 0; c < E / 4; ++c) {
            const float4 x = initial[(r * E / 4 + c) * Shared::kThreads];
            tile.s[r][4 * c] = x.x, tile.s[r][4 * c + 1] = x.y, tile.s[r][4 * c + 2] = x.z, tile.s[r][4 * c + 3] = x.w;
          }
        }
      }
      float u[R];
      if (mode & DraftProgram::kReplay) {
        __syncwarp();
#pragma unroll
        for (int r = 0; r < R; ++r) u[r] = u_rows[node * kBlockRows + local_row + r];
        tile.replay(token, u);
        if (round_steps) tile.round_bf16();
        continue;
      }
      float p[R], w[R], k[E];
      const bool leaf = (mode & DraftProgram::kLeaf) != 0;
      if (leaf) {
        tile.template decay_and_dot<false>(token, p, w, k);
      } else {
        tile.template decay_and_dot<true>(token, p, w, k);
      }
      const float row_p = sum_rows<R>(p, tile.j), row_w = sum_rows<R>(w, tile.j);
      const int row = local_row + tile.j % R;
      const RowResult result = finish_row(token, values[i * kBlockRows + row], row_p, row_w, a.tokens.scale);
      if (tile.j < R && (Io::kFixed || block_row + row < f.V)) {
        store_element(
            a.tokens.out.data, a.tokens.out.dtype,
            (range.begin + node) * a.tokens.out.token_stride + hv * a.tokens.out.head_stride + block_row + row,
            result.out);
        if (has_record) {
          reinterpret_cast<float*>(record + a.record_layout.nodes_begin +
                                   node * a.record_layout.node_bytes)[int64_t{hv} * f.V + block_row + row] = result.u;
        }
      }
      if (draft) {
        if (tile.j < R) u_rows[node * kBlockRows + row] = result.u;
      }
      if (!leaf || node_stores) spread_rows<R>(result.u, u);
      if (node_stores) {
        Tile child = tile;
        if (leaf) {
          child.replay(token, u);
        } else {
          child.add_outer(k, u);
        }
        if (a.node_states != nullptr) {
          const int64_t at = present(a.record_rows) ? index_at(a.record_rows, n) : n;
          if (at >= 0 && at < a.node_states_rows && node < a.node_states_nodes) {
            const int64_t element =
                at * a.node_states_row_stride + node * a.node_states_node_stride + hv * head_elements;
            child.store(a.node_states + element * (a.node_states_dtype == DType::fp32 ? 4 : 2), a.node_states_dtype, f,
                        v0);
          } else if (at >= 0) {
            bits |= KDA_DEVICE_BAD_ENTRY;
          }
        }
        if (present(a.node_slots)) {
          const int64_t slot = index_at(a.node_slots, n, node);
          const bool skip = slot < 0 || (f.null_slot0 && slot == 0 && same_pool(a.node_pool, a.state));
          if (!skip && slot < a.node_pool.slots) {
            child.store(head_of(a.node_pool, slot), a.node_pool.dtype, f, v0);
          } else if (!skip) {
            bits |= KDA_DEVICE_BAD_ENTRY;
          }
        }
        if (!leaf) tile = child;
      } else if (!leaf) {
        tile.add_outer(k, u);
      }
      if (round_steps && !leaf) tile.round_bf16();
      if (General && !a.verify && first + i + 1 == next_stop) {
        if (!a.stepped_positions || next_stop % kFastSnapshotStep == 0 || next_stop == count)
          store_snapshots(next_stop);
        next_stop = next_snapshot(a.snapshots, n, next_stop);
      }
    }
  }

  if (!a.verify && target.dst >= 0) {
    // an empty row in place keeps every bit, unless it starts from zero
    if (count > 0 || !target.in_place || target.slot < 0) tile.store(head_of(a.dst, target.dst), a.dst.dtype, f, v0);
  }
  if (first_block && threadIdx.x == 0) raise_status(a.status, bits);
}

}  // namespace kda::cuda
