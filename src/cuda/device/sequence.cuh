// The exact recurrence over one row's tokens: extend and verify, with or without a pending commit. A block of W warps
// keeps some rows of one head's state in registers; prepared tokens pass through shared memory in tiles. Recorded nodes
// of a pending commit are the first tokens.
#pragma once

#include "cuda/device/draft.cuh"
#include "cuda/device/snapshots.cuh"
#include "cuda/device/tile.cuh"

namespace kda::cuda {

struct SequenceArgs {
  TokenInputs tokens;
  Rows rows;
  StatePool state, dst;
  StateSnapshots snapshots;  // extend: by position; verify: of the pending commit, by node
  Form form;
  RecordLayout record_layout;
  bool verify;
  bool stepped_positions;  // snapshot positions are multiples of kFastSnapshotStep, or the row's end
  bool keep_initial;       // restarts begin from a copy in shared memory, else from the pool
  int tile_tokens;         // prepared at a time
  Draft draft;
  RecordBuffer records;
  IndexView record_rows;
  std::byte* node_states;
  DType node_states_dtype;
  int64_t node_states_rows, node_states_nodes, node_states_row_stride, node_states_node_stride;
  IndexView node_slots;
  StatePool node_pool;
  PendingCommit pending;
  int splits;      // of the WY form: blocks that share one head's rows
  BlockGrid grid;  // of the recurrence
  uint32_t* status;
};

// Shared memory of a block, in floats: prepared tokens | values (u of recorded nodes) | u of the draft's nodes | the
// draft's program | the initial state.
template <class Tile, int W>
struct SequenceShared {
  static constexpr int kThreads = W * kWarp;
  static constexpr int kBlockRows = W * Tile::kRows;
  static constexpr int kTokenFloats = Tile::Vectors::kFloats + kBlockRows;
  static constexpr int kProgramFloats = (sizeof(DraftProgram) + 15) / 16 * 4;
  static int64_t bytes(int tile_tokens, int draft_nodes, bool keep_initial) {
    return 4 * (int64_t{tile_tokens} * kTokenFloats + (draft_nodes ? kProgramFloats : 0) +
                int64_t{draft_nodes ? draft_nodes : 1} * kBlockRows +
                (keep_initial ? int64_t{kThreads} * Tile::kStateRegisters : 0));
  }
};

// AnyIo serves everything; with FixedIo there are also no snapshots and no stored node states, and the pools are
// 16-byte aligned and of one dtype. Blocks of them share a multiprocessor.
template <class Tile, int W, int Blocks, class Io>
__global__ void __launch_bounds__(W* kWarp, Blocks) sequence_kernel(const __grid_constant__ SequenceArgs a) {
  constexpr bool General = !Io::kFixed;
  constexpr int KP = Tile::KP, R = Tile::R;
  using Shared = SequenceShared<Tile, W>;
  using Vectors = typename Tile::Vectors;
  constexpr int kBlockRows = Shared::kBlockRows;
  constexpr int kValueChunks = (kBlockRows + 127) / 128;
  // A small tile waits in registers while tokens are prepared; a large one is only brought to the cache.
  constexpr bool kEarlyLoad = Tile::kStateRegisters <= 32 || Blocks <= 2;
  extern __shared__ __align__(16) float shared[];

  wait_for_previous_kernel();
  const Form& f = a.form;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const auto [n, hv, split] = block_place(a.grid);
  const int block_row = split * kBlockRows;
  const int v0 = Tile::first_row(block_row + warp * Tile::kRows);
  const int local_row = v0 - block_row;
  const int64_t head_elements = int64_t{f.K} * f.V;
  const bool first_block = hv == 0 && split == 0;
  const bool draft = a.verify && present(a.draft.parents);
  const bool pending = a.verify && present(a.pending.tips);

  float* const vectors = shared;
  float* const values = vectors + a.tile_tokens * Vectors::kFloats;
  float* const u_rows = values + a.tile_tokens * kBlockRows;
  DraftProgram& program = *reinterpret_cast<DraftProgram*>(u_rows + (draft ? f.max_nodes : 1) * kBlockRows);
  float4* const initial = reinterpret_cast<float4*>(&program) + (draft ? Shared::kProgramFloats / 4 : 0) + threadIdx.x;

  const RowIndices indices = load_row_indices(a.rows, n);
  const bool records_here = a.verify && a.records.base != nullptr;
  const int64_t record_row = !records_here ? -1 : present(a.record_rows) ? index_at(a.record_rows, n) : n;
  const int64_t pending_tip = pending ? index_at(a.pending.tips, n) : -1;
  const int64_t pending_record = pending ? index_at(a.pending.record_rows, n) : -1;
  uint32_t bits = 0;
  const RowRange range = resolve_range(a.rows, n, a.verify ? f.max_nodes : INT64_MAX, bits);
  RowTarget target;
  if (!range.bad)
    target =
        resolve_target(indices, present(a.rows.slots), present(a.rows.dst_slots), a.state, a.dst, f.null_slot0, bits);
  if (!present(a.rows.dst_slots) && a.verify && !pending) target.dst = -1;
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

  // The next token that this warp prepares. The first is asked for here where it is known already.
  TokenData<Io, KP> next;
  Raw4 next_values[kValueChunks];
  auto load_node = [&](int node) {
    const int64_t t = range.begin + node;
    next.load(a.tokens, f, t, hv);
    const int64_t v_offset = t * a.tokens.v.token_stride + hv * a.tokens.v.head_stride + block_row;
#pragma unroll
    for (int c = 0; c < kValueChunks; ++c) {
      const int x = 128 * c + 4 * lane;
      next_values[c] = {};
      if (x < kBlockRows && (Io::kFixed || block_row + x < f.V)) {
        next_values[c] = load4_raw<Io::kFixed>(a.tokens.v.data, Io::token(a.tokens.v.dtype), v_offset + x);
      }
    }
  };
  if (!draft && !pending && warp < count) load_node(warp);
  HeadLoads<Io, KP> head_loads;
  head_loads.load(a.tokens, f, hv);

  Tile tile;
  const std::byte* start = target.slot >= 0 ? head_of(a.state, target.slot) : nullptr;
  auto load_start = [&] {
    if (start != nullptr) {
      tile.load(start, f, v0);
    } else {
      tile.zero();
    }
  };
  if constexpr (kEarlyLoad) {
    load_start();
  } else if (start != nullptr) {
    tile.prefetch(start, f, v0);
  }

  int steps = count;
  if (draft) {
    if (warp == 0) {
      const bool ok = load_parents(program, a.draft, f.single_root, n, range.begin, count);
      if (lane == 0) program.bad = !ok;
      if (ok) order_draft(program, count);
    }
    __syncthreads();
    if (program.bad) {
      bits |= KDA_DEVICE_BAD_PARENT;
    } else {
      steps = program.steps;
    }
  }

  RecordedPath path;
  const std::byte* pending_row = nullptr;
  if (pending && (bits & KDA_DEVICE_BAD_PARENT) == 0) {
    if (pending_tip >= 0 && pending_record >= 0) {
      if (pending_record >= a.records.rows) {
        path.bits = KDA_DEVICE_BAD_RECORD;
      } else {
        pending_row = a.records.base + pending_record * a.records.row_stride;
        path = recorded_path(pending_row, a.record_layout, kRecordMagic, f.max_nodes, pending_tip);
      }
    }
    bits |= path.bits;
  }
  if (bits & (KDA_DEVICE_BAD_PARENT | KDA_DEVICE_BAD_RECORD | KDA_DEVICE_BAD_TIP)) {  // the row is null
    if (first_block && threadIdx.x == 0) raise_status(a.status, bits);
    give_zeros();
    return;
  }
  const int path_steps = __popcll(path.nodes), all_steps = path_steps + steps;

  // records of this call
  std::byte* record = nullptr;
  if (record_row >= 0 && record_row < a.records.rows) record = a.records.base + record_row * a.records.row_stride;
  if (records_here && record_row >= a.records.rows) bits |= KDA_DEVICE_BAD_ENTRY;
  if (record != nullptr && first_block && warp == 0) {
    if (lane == 0) {
      *reinterpret_cast<RecordHeader*>(record) = {kRecordMagic, a.record_layout.version_form, count,
                                                  a.record_layout.geometry};
    }
    RecordParent* parents = reinterpret_cast<RecordParent*>(record + sizeof(RecordHeader));
    for (int t = lane; t < f.max_nodes; t += kWarp)
      parents[t] = {t < count ? (draft ? program.parent[t] : t - 1) : -1, 0};
  }

  // The recorded node of step s of the path, and the draft's node of a later step.
  auto path_node = [&](int s) {
    uint64_t rest = path.nodes;
    for (int i = 0; i < s; ++i) rest &= rest - 1;
    return __ffsll(rest) - 1;
  };
  auto node_of = [&](int s) { return draft ? int{program.node[s - path_steps]} : s - path_steps; };

  // Warps take turns; a warp's next token is on its way while it prepares one.
  auto prepare = [&](int first) {
    const int end = all_steps - first < a.tile_tokens ? all_steps : first + a.tile_tokens;
    TokenData<Io, KP> data;
    Raw4 raw_values[kValueChunks];
    auto load_next = [&](int s) {
      if (s >= path_steps && s < end) load_node(node_of(s));
    };
    if (first > 0 || draft || pending) load_next(first + warp);
#pragma unroll 1
    for (int s = first + warp; s < end; s += W) {
      data = next;
#pragma unroll
      for (int c = 0; c < kValueChunks; ++c) raw_values[c] = next_values[c];
      load_next(s + W);
      const int i = s - first;
      const Vectors token{vectors + i * Vectors::kFloats};
      if (s < path_steps) {
        const std::byte* node = pending_row + a.record_layout.nodes_begin + path_node(s) * a.record_layout.node_bytes;
        restore_token<KP>(node, a.record_layout.decay, a.record_layout.k, a.record_layout.k_rnorm, f, hv, token);
        const float* u = reinterpret_cast<const float*>(node) + int64_t{hv} * f.V + block_row;
#pragma unroll
        for (int x = lane; x < kBlockRows; x += kWarp) {
          values[i * kBlockRows + x] = Io::kFixed || block_row + x < f.V ? u[x] : 0.0f;
        }
        continue;
      }
      const int node = node_of(s);
      RecordTargets targets;
      if (record != nullptr && split == 0 && !(draft && (program.mode[s - path_steps] & DraftProgram::kReplay))) {
        std::byte* const at = record + a.record_layout.nodes_begin + node * a.record_layout.node_bytes;
        const int h = hv / f.heads_ratio;
        targets.decay = at + a.record_layout.decay + int64_t{hv} * f.K * (f.fp16_decay ? 2 : 4);
        if (hv % f.heads_ratio == 0) {
          targets.k = at + a.record_layout.k + int64_t{h} * f.K * (f.io == DType::fp32 ? 4 : 2);
          targets.k_rnorm = reinterpret_cast<NormFactor*>(at + a.record_layout.k_rnorm) + h;
        }
      }
      prepare_token(data, head_loads, a.tokens, f, token, targets);
#pragma unroll
      for (int c = 0; c < kValueChunks; ++c) {
        const int x = 128 * c + 4 * lane;
        if (x < kBlockRows) {
          *reinterpret_cast<float4*>(values + i * kBlockRows + x) =
              to_float4(raw_values[c], Io::token(a.tokens.v.dtype));
        }
      }
    }
  };
  const bool own_snapshots = same_pool(a.snapshots.pool, a.state);
  int64_t next_stop = kNoStop;
  uint64_t wanted = 0;
  if constexpr (General) {
    if (pending) {
      wanted = wanted_nodes(a.snapshots, n);
      if (first_block) {
        bits |= check_snapshots(a.snapshots, a.rows.count, n, own_snapshots, f.null_slot0,
                                [&](int64_t node) { return node < f.max_nodes && (path.nodes >> node & 1) != 0; });
      }
    }
    if (!a.verify && present(a.snapshots.rows)) {
      if (first_block) {
        bits |= check_snapshots(a.snapshots, a.rows.count, n, own_snapshots, f.null_slot0, [&](int64_t position) {
          return position <= count && (!a.stepped_positions || position % kFastSnapshotStep == 0 || position == count);
        });
      }
      next_stop = next_snapshot(a.snapshots, n, -1);
    }
  }
  auto store_snapshots = [&](int64_t position, const auto& store) {
    if constexpr (General) {
      for_snapshots_at(a.snapshots, n, position, own_snapshots, f.null_slot0,
                       [&](int64_t slot) { store(head_of(a.snapshots.pool, slot), a.snapshots.pool.dtype); });
    }
  };
  const auto store_tile = [&](std::byte* head, DType dtype) { tile.store(head, dtype, f, v0); };
  if (pending && path_steps == 0 && target.in_place) target.dst = -1;
  // What follows the pending commit: its state is stored, and restarts begin there.
  auto end_path = [&](bool stored) {
    if (pending && target.dst >= 0) {
      if (!stored) tile.store(head_of(a.dst, target.dst), a.dst.dtype, f, v0);
      if (path_steps > 0) start = head_of(a.dst, target.dst);
    }
    if (a.keep_initial) tile.save(initial, Shared::kThreads);
  };

  const bool has_record = pinned(record != nullptr) != 0;
  const bool node_stores = General && (a.node_states != nullptr || present(a.node_slots));
  const int row = local_row + tile.j % R;
  const bool owns_row = tile.j < R && (Io::kFixed || block_row + row < f.V);
  const int64_t out_row = range.begin * a.tokens.out.token_stride + hv * a.tokens.out.head_stride + block_row + row;
  std::byte* const u_record =
      has_record ? record + a.record_layout.nodes_begin + 4 * (int64_t{hv} * f.V + block_row + row) : nullptr;
#pragma unroll 1
  for (int first = 0; first == 0 || first < all_steps; first += a.tile_tokens) {
    if (first > 0) __syncthreads();
    prepare(first);
    if (first == 0) {
      if constexpr (!kEarlyLoad) load_start();
      if (General && next_stop == 0) {
        store_snapshots(0, store_tile);
        next_stop = next_snapshot(a.snapshots, n, 0);
      }
      if (path_steps == 0) end_path(false);
    }
    __syncthreads();
    const int tile_steps = all_steps - first < a.tile_tokens ? all_steps - first : a.tile_tokens;
#pragma unroll 1
    for (int i = 0; i < tile_steps; ++i) {
      const Vectors token{vectors + i * Vectors::kFloats};
      const int s = first + i - path_steps;  // negative: recorded
      const bool recorded = s < 0;
      int node = s, mode = 0;
      const float* u_from = values + i * kBlockRows + local_row;
      if (!recorded) {
        if (draft) {
          node = program.node[s], mode = program.mode[s];
        } else if (a.verify && node == count - 1) {
          mode = DraftProgram::kLeaf;
        }
        float* const u_row = u_rows + (draft ? node * kBlockRows : 0);
        u_from = u_row + local_row;
        if (mode & DraftProgram::kRestart) {
          if (a.keep_initial) {
            tile.restore(initial, Shared::kThreads);
          } else {
            load_start();
          }
        }
        if ((mode & DraftProgram::kReplay) == 0) {
          float p[R], w[R];
          tile.dots(token, p, w);
          const float row_p = sum_rows<Tile::kLanes, R>(p, tile.j), row_w = sum_rows<Tile::kLanes, R>(w, tile.j);
          const RowResult result =
              finish_row(token.scalars(), values[i * kBlockRows + row], row_p, row_w, a.tokens.scale);
          if (owns_row) {
            u_row[row] = result.u;
            store_element(a.tokens.out.data, Io::token(a.tokens.out.dtype), out_row + node * a.tokens.out.token_stride,
                          result.out);
            if (has_record) *reinterpret_cast<float*>(u_record + node * a.record_layout.node_bytes) = result.u;
          }
        }
        if ((mode & DraftProgram::kLeaf) != 0 && !node_stores) continue;
        __syncwarp();
      }
      float u[R];
      load_rows<R>(u_from, u);
      bool stored = false;
      if constexpr (General) {
        const auto store_next = [&](std::byte* head, DType dtype) { tile.store_updated(token, u, head, dtype, f, v0); };
        if (recorded) {
          const int at = path_node(first + i);
          if (wanted >> at & 1) store_snapshots(at, store_next);
          if (s == -1 && target.dst >= 0) {
            store_next(head_of(a.dst, target.dst), a.dst.dtype);
            stored = true;
          }
        } else if (node_stores && (mode & DraftProgram::kReplay) == 0) {
          if (a.node_states != nullptr) {
            const int64_t at = present(a.record_rows) ? index_at(a.record_rows, n) : n;
            if (at >= 0 && at < a.node_states_rows && node < a.node_states_nodes) {
              const int64_t element =
                  at * a.node_states_row_stride + node * a.node_states_node_stride + hv * head_elements;
              store_next(a.node_states + element * (a.node_states_dtype == DType::fp32 ? 4 : 2), a.node_states_dtype);
            } else if (at >= 0) {
              bits |= KDA_DEVICE_BAD_ENTRY;
            }
          }
          if (present(a.node_slots)) {
            const int64_t slot = index_at(a.node_slots, n, node);
            const bool skip = slot < 0 || (f.null_slot0 && slot == 0 && same_pool(a.node_pool, a.state));
            if (!skip && slot < a.node_pool.slots) {
              store_next(head_of(a.node_pool, slot), a.node_pool.dtype);
            } else if (!skip) {
              bits |= KDA_DEVICE_BAD_ENTRY;
            }
          }
        }
      }
      if (mode & DraftProgram::kLeaf) continue;
      tile.update(token, u);
      __syncwarp();  // the next token's u may take the place of this one's
      if (s == -1) end_path(stored);
      if (General && !a.verify && s + 1 == next_stop) {
        if (!a.stepped_positions || next_stop % kFastSnapshotStep == 0 || next_stop == count)
          store_snapshots(next_stop, store_tile);
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
