// Exact verify of many units: blocks that stay, each with four warps that run the recurrence (consumers) and four that
// prepare tokens (producers). While the consumers work on one unit (a row and a value head), the producers fill a ring
// of prepared tokens of the next, and its state comes into shared memory by one bulk copy. A consumer needs nothing of
// the others: it owns 32 value rows. The arithmetic is sequence.cuh's, so the bits are the same.
// For bf16 tokens, pools that are value-first and 16-byte aligned, K = V = 128, no
// stored node states and snapshots, at most kStreamNodes nodes.
#pragma once

#include "cuda/device/barrier.cuh"
#include "cuda/device/sequence.cuh"

namespace kda::cuda {

constexpr int kStreamNodes = 16;

struct StreamArgs {
  SequenceArgs sequence;
  uint32_t units;
};

// What the consumers have to know of a unit.
struct StreamUnit {
  std::byte* record;       // null: none
  std::byte* destination;  // where the state after the recorded path goes; null: nowhere
  int64_t begin;           // first token
  int hv, count;
  int path_steps;   // recorded nodes of a pending commit, the first steps
  int steps;        // all of them; negative: no unit follows
  bool fresh;       // starts from zero
  bool uses_state;  // the state's place in shared memory, which a copy fills unless it is fresh
};

template <class Tile>
struct StreamShared {
  static constexpr int kWarps = 4;                    // of each kind
  static constexpr int kRows = kWarps * Tile::kRows;  // all of a head's
  static constexpr int kStateBytes = kRows * Tile::KP * Tile::kElementBytes;
  static constexpr int kRing = 12;  // prepared tokens; a multiple of kWarps, so that one producer always fills a place
  static constexpr int kTokenFloats = Tile::Vectors::kFloats + kRows;

  float tokens[kRing][kTokenFloats];
  StreamUnit units[2];
  uint64_t token_full[kRing], token_empty[kRing], unit_full[2], unit_empty[2], state_full, state_empty;
  // behind it: u of the draft's nodes, then for drafts two programs
};

template <class Tile>
struct StreamLayout {
  using Shared = StreamShared<Tile>;
  static constexpr int64_t kShared = Shared::kStateBytes;
  static constexpr int64_t kU = kShared + (sizeof(Shared) + 15) / 16 * 16;
  static constexpr int64_t programs(int nodes) { return kU + int64_t{nodes} * Shared::kRows * 4; }
  static constexpr int64_t kProgramBytes = (sizeof(DraftProgram) + 15) / 16 * 16;
  static constexpr int64_t bytes(int draft_nodes) {
    return draft_nodes == 0 ? programs(1) : programs(draft_nodes) + 2 * kProgramBytes;
  }
};

#if __CUDA_ARCH__ >= 900 && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define KDA_STREAM_CODE 1
#endif

#ifdef KDA_STREAM_CODE

// A place in the ring and the parity of its phase.
template <int Places>
struct RingPlace {
  int place, parity = 0;
  __device__ explicit RingPlace(int first) : place(first) {}
  __device__ void advance(int by) {
    place += by;
    if (place >= Places) place -= Places, parity ^= 1;
  }
};

// Pending: with a pending commit, whose path is walked first.
template <class Tile, class Io, bool Pending>
struct StreamProducer {
  using Shared = StreamShared<Tile>;
  static constexpr int KP = Tile::KP;
  static constexpr int kWarps = Shared::kWarps;

  const SequenceArgs& a;
  Shared& shared;
  std::byte* const state;
  DraftProgram* const programs;
  const int warp;  // of the producers
  const int lane = threadIdx.x % kWarp;
  RingPlace<Shared::kRing> ring;
  int live = 0, uses = 0;

  __device__ StreamProducer(const SequenceArgs& args, Shared& s, std::byte* state_, DraftProgram* programs_, int warp_)
      : a(args), shared(s), state(state_), programs(programs_), warp(warp_), ring(warp_) {}

  __device__ static int path_steps_of(const StreamUnit& unit) { return Pending ? unit.path_steps : 0; }
  __device__ bool leads() const { return warp == 0; }
  __device__ static void meet() { asm volatile("bar.sync 1, %0;" ::"n"(kWarps * kWarp) : "memory"); }

  __device__ void run(uint32_t units) {
    for (uint32_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
      const uint32_t n = a.grid.heads.quotient(unit);
      prepare_unit(n, static_cast<int>(unit - n * a.grid.heads.value));
    }
    if (leads()) {
      StreamUnit end{};
      end.steps = -1;
      publish(end);
    }
  }

 private:
  __device__ StreamUnit& place_of_unit() {
    if (live >= 2) wait_barrier(shared.unit_empty + live % 2, (live / 2 - 1) & 1);
    return shared.units[live % 2];
  }
  __device__ void publish(const StreamUnit& unit) {
    StreamUnit& place = place_of_unit();
    if (lane == 0) {
      place = unit;
      arrive(shared.unit_full + live % 2);
    }
  }

  __device__ void give_zeros(const RowRange& range, int hv) const {
    for (int64_t i = lane; i < range.count * Shared::kRows; i += kWarp) {
      const int64_t t = range.begin + i / Shared::kRows;
      store_element(a.tokens.out.data, Io::token(a.tokens.out.dtype),
                    t * a.tokens.out.token_stride + hv * a.tokens.out.head_stride + i % Shared::kRows, 0.0f);
    }
  }

  __device__ void prepare_unit(int64_t n, int hv) {
    const Form& f = a.form;
    const bool draft = present(a.draft.parents);
    uint32_t bits = 0;
    const RowIndices indices = load_row_indices(a.rows, n);
    const int64_t record_row = a.records.base == nullptr ? -1 : present(a.record_rows) ? index_at(a.record_rows, n) : n;
    HeadLoads<Io, KP> head_loads;
    head_loads.load(a.tokens, f, hv);
    const RowRange range = resolve_range(a.rows, n, f.max_nodes, bits);
    RowTarget target;
    if (!range.bad)
      target =
          resolve_target(indices, present(a.rows.slots), present(a.rows.dst_slots), a.state, a.dst, f.null_slot0, bits);
    const int count = static_cast<int>(range.count);
    constexpr bool pending = Pending;
    const int64_t tip = pending ? index_at(a.pending.tips, n) : -1;
    const int64_t pending_record = pending ? index_at(a.pending.record_rows, n) : -1;
    DraftProgram& program = programs[live % 2];
    bool is_null = range.bad || target.null;
    if (draft && !is_null) {
      if (leads()) {
        place_of_unit();  // the consumers are done with the program that stood here
        const bool ok = load_parents(program, a.draft, f.single_root, n, range.begin, count);
        if (lane == 0) program.bad = !ok;
        if (ok) order_draft(program, count);
      }
      meet();
      if (program.bad) bits |= KDA_DEVICE_BAD_PARENT, is_null = true;
    }
    RecordedPath path;
    const std::byte* pending_row = nullptr;
    if (pending && !is_null && tip >= 0 && pending_record >= 0) {
      if (pending_record >= a.records.rows) {
        path.bits = KDA_DEVICE_BAD_RECORD;
      } else {
        pending_row = a.records.base + pending_record * a.records.row_stride;
        path = recorded_path(pending_row, a.record_layout, kRecordMagic, f.max_nodes, tip);
      }
      bits |= path.bits;
      is_null = path.bits != 0;
    }
    if (is_null) {
      if (draft) meet();  // everybody has read the program before the next takes its place
      if (!leads()) return;
      if (hv == 0 && lane == 0) raise_status(a.status, bits);
      if (!range.bad) give_zeros(range, hv);
      return;
    }
    StreamUnit unit{};
    unit.begin = range.begin, unit.hv = hv, unit.count = count;
    unit.path_steps = __popcll(path.nodes);
    unit.steps = path_steps_of(unit) + (draft ? program.steps : count);
    unit.fresh = target.slot < 0;
    unit.uses_state = !unit.fresh || (unit.path_steps > 0 && draft && program.restarts > 0);
    if (pending && target.dst >= 0 && !(unit.path_steps == 0 && target.in_place))
      unit.destination = slot_address(a.dst, a.dst.base, target.dst) + int64_t{hv} * Shared::kStateBytes;
    if (record_row >= 0 && record_row < a.records.rows)
      unit.record = a.records.base + record_row * a.records.row_stride;
    const bool bad_record = a.records.base != nullptr && record_row >= a.records.rows;
    const std::byte* start = nullptr;
    if (leads()) {
      if (!unit.fresh) start = slot_address(a.state, a.state.base, target.slot) + int64_t{hv} * Shared::kStateBytes;
      publish(unit);
      if (hv == 0) {
        if (lane == 0) raise_status(a.status, bad_record ? bits | KDA_DEVICE_BAD_ENTRY : bits);
        if (unit.record != nullptr) write_header(unit, program, draft);
      }
    }
    prepare_tokens(unit, program, draft, head_loads, pending_row, path.nodes, start);
    ++live;
  }

  __device__ void write_header(const StreamUnit& unit, const DraftProgram& program, bool draft) const {
    if (lane == 0) {
      *reinterpret_cast<RecordHeader*>(unit.record) = {kRecordMagic, a.record_layout.version_form, unit.count,
                                                       a.record_layout.geometry};
    }
    RecordParent* parents = reinterpret_cast<RecordParent*>(unit.record + sizeof(RecordHeader));
    for (int t = lane; t < a.form.max_nodes; t += kWarp)
      parents[t] = {t < unit.count ? (draft ? program.parent[t] : t - 1) : -1, 0};
  }

  // Takes the state's place in shared memory if it is free, and starts the copy into it; must: waits until it is free.
  __device__ void take_state(bool& wanted, const std::byte* start, bool must) {
    if (!wanted) return;
    if (uses > 0) {
      if (must) {
        wait_barrier(&shared.state_empty, (uses - 1) & 1);
      } else if (!has_ended(&shared.state_empty, (uses - 1) & 1)) {
        return;
      }
    }
    if (lane == 0) {
      if (start != nullptr) {
        bulk_copy(state, start, Shared::kStateBytes, &shared.state_full);
      } else {
        arrive(&shared.state_full);
      }
    }
    wanted = false;
    ++uses;
  }

  // The vectors of a recorded node, and its u for this lane.
  __device__ float4 restore(const std::byte* row, int node, int hv, const typename Tile::Vectors& token) const {
    const std::byte* from = row + a.record_layout.nodes_begin + node * a.record_layout.node_bytes;
    restore_token<KP>(from, a.record_layout.decay, a.record_layout.k, a.record_layout.k_rnorm, a.form, hv, token);
    return reinterpret_cast<const float4*>(from)[hv * Shared::kRows / 4 + lane];
  }

  // Where the record of a node goes.
  __device__ RecordTargets targets_of(const StreamUnit& unit, int node, bool replay) const {
    RecordTargets targets;
    if (unit.record == nullptr || replay) return targets;
    std::byte* const to = unit.record + a.record_layout.nodes_begin + node * a.record_layout.node_bytes;
    targets.decay = to + a.record_layout.decay + int64_t{unit.hv} * KP * (a.form.fp16_decay ? 2 : 4);
    if (unit.hv % a.form.heads_ratio == 0) {
      const int h = unit.hv / a.form.heads_ratio;
      targets.k = to + a.record_layout.k + int64_t{h} * KP * 2;
      targets.k_rnorm = reinterpret_cast<NormFactor*>(to + a.record_layout.k_rnorm) + h;
    }
    return targets;
  }

  __device__ void prepare_tokens(const StreamUnit& unit, const DraftProgram& program, bool draft,
                                 const HeadLoads<Io, KP>& head_loads, const std::byte* pending_row, uint64_t path,
                                 const std::byte* start) {
    const Form& f = a.form;
    const int hv = unit.hv;
    TokenData<Io, KP> next;
    Raw4 next_values;
    bool wanted = leads() && unit.uses_state;
    const auto node_of = [&](int s) {
      return draft ? int{program.node[s - path_steps_of(unit)]} : s - path_steps_of(unit);
    };
    const auto load = [&](int s) {
      if (s < path_steps_of(unit) || s >= unit.steps) return;
      const int64_t t = unit.begin + node_of(s);
      next.load(a.tokens, f, t, hv);
      next_values = load4_raw<Io::kFixed>(a.tokens.v.data, Io::token(a.tokens.v.dtype),
                                          t * a.tokens.v.token_stride + hv * a.tokens.v.head_stride + 4 * lane);
    };
    // Places of the ring go on from unit to unit, so this warp's first step depends on where the last unit ended.
    int s = first_step;
    load(s);
#pragma unroll 1
    for (; s < unit.steps; s += kWarps) {
      take_state(wanted, start, s >= Shared::kRing);
      const TokenData<Io, KP> data = next;
      const Raw4 raw_values = next_values;
      load(s + kWarps);
      wait_barrier(shared.token_empty + ring.place, ring.parity ^ 1);  // passes at once in the ring's first turn
      float* const at = shared.tokens[ring.place];
      const typename Tile::Vectors token{at};
      float4& value = *reinterpret_cast<float4*>(at + Tile::Vectors::kFloats + 4 * lane);
      if (s < path_steps_of(unit)) {
        uint64_t rest = path;
        for (int i = 0; i < s; ++i) rest &= rest - 1;
        value = restore(pending_row, __ffsll(rest) - 1, hv, token);
      } else {
        const int node = node_of(s);
        prepare_token(data, head_loads, a.tokens, f, token,
                      targets_of(unit, node, draft && (program.mode[s - path_steps_of(unit)] & DraftProgram::kReplay)));
        value = to_float4(raw_values, Io::token(a.tokens.v.dtype));
      }
      __syncwarp();
      if (lane == 0) arrive(shared.token_full + ring.place);
      ring.advance(kWarps);
    }
    first_step = s - unit.steps;
    take_state(wanted, start, true);
  }

  int first_step = warp;
};

template <class Tile, class Io, bool Pending>
__device__ inline void stream_consumer(const SequenceArgs& a, StreamShared<Tile>& shared, std::byte* state,
                                       float* u_rows, const DraftProgram* programs) {
  using Shared = StreamShared<Tile>;
  using Vectors = typename Tile::Vectors;
  constexpr int R = Tile::R;
  const Form& f = a.form;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const bool draft = present(a.draft.parents);
  Tile tile;
  const int v0 = Tile::first_row(warp * Tile::kRows);
  const int row = v0 + tile.j % R;
  const bool owns_row = tile.j < R;
  RingPlace<Shared::kRing> ring(0);
  int uses = 0;
  for (int live = 0;; ++live) {
    wait_barrier(shared.unit_full + live % 2, live / 2 & 1);
    const StreamUnit unit = shared.units[live % 2];
    if (unit.steps < 0) return;
    const DraftProgram& program = programs[live % 2];
    const int64_t out_row = unit.begin * a.tokens.out.token_stride + unit.hv * a.tokens.out.head_stride + row;
    std::byte* const u_record = unit.record == nullptr
                                    ? nullptr
                                    : unit.record + a.record_layout.nodes_begin + 4 * (int64_t{unit.hv} * f.V + row);
    const bool uses_state = Pending ? unit.uses_state : !unit.fresh;
    const bool restarts = draft && program.restarts > 0;
    bool from_zero = unit.fresh;
    const auto load_start = [&] {
      if (from_zero) {
        tile.zero();
      } else {
        tile.load_shared(state, v0);
      }
    };
    const auto release_state = [&] {
      __syncwarp();
      if (lane == 0) arrive(&shared.state_empty);
    };
    if (uses_state) wait_barrier(&shared.state_full, uses++ & 1);
    load_start();
    if (uses_state && !restarts) release_state();
    if (Pending && unit.path_steps == 0 && unit.destination != nullptr) tile.store(unit.destination, f.state, f, v0);
#pragma unroll 1
    for (int s = 0; s < unit.steps; ++s) {
      wait_barrier(shared.token_full + ring.place, ring.parity);
      float* const at = shared.tokens[ring.place];
      const Vectors token{at};
      const int own = Pending ? s - unit.path_steps : s;  // negative: recorded
      int node = own, mode = (!Pending || own >= 0) && own == unit.count - 1 ? DraftProgram::kLeaf : 0;
      const float* u_from = at + Vectors::kFloats + v0;
      if (!Pending || own >= 0) {
        if (draft) node = program.node[own], mode = program.mode[own];
        if (mode & DraftProgram::kRestart) load_start();
        float* const u_row = u_rows + (draft ? node * Shared::kRows : 0);
        u_from = u_row + v0;
        if ((mode & DraftProgram::kReplay) == 0) {
          float p[R], w[R];
          tile.dots(token, p, w);
          const float row_p = sum_rows<Tile::kLanes, R>(p, tile.j), row_w = sum_rows<Tile::kLanes, R>(w, tile.j);
          const RowResult result =
              finish_row(token.scalars(), at[Vectors::kFloats + row], row_p, row_w, a.tokens.scale);
          if (owns_row) {
            u_row[row] = result.u;
            store_element(a.tokens.out.data, Io::token(a.tokens.out.dtype), out_row + node * a.tokens.out.token_stride,
                          result.out);
            if (u_record != nullptr) *reinterpret_cast<float*>(u_record + node * a.record_layout.node_bytes) = result.u;
          }
        }
        __syncwarp();
      }
      if ((mode & DraftProgram::kLeaf) == 0) {
        float u[R];
        load_rows<R>(u_from, u);
        tile.update(token, u);
        if (Pending && own == -1) {
          if (unit.destination != nullptr) tile.store(unit.destination, f.state, f, v0);
          if (restarts) {  // they begin here
            tile.store_shared(state, v0);
            fence_shared_for_copies();
            from_zero = false;
          }
        }
      }
      __syncwarp();
      if (lane == 0) arrive(shared.token_empty + ring.place);
      ring.advance(1);
    }
    if (uses_state && restarts) release_state();
    __syncwarp();
    if (lane == 0) arrive(shared.unit_empty + live % 2);
  }
}

#endif

// Registers a thread: a block is launched with 128 for each of 256 threads, and its warps share them anew. The splits
// with the fewest spills (none to 12 bytes).
template <class Tile, bool Pending>
constexpr int kProducerRegisters = Tile::kRounds || Pending ? 88 : 80;
template <class Tile, bool Pending>
constexpr int kConsumerRegisters = 256 - kProducerRegisters<Tile, Pending>;

template <class Tile, class Io, bool Pending>
__global__ void __launch_bounds__(256, 2) verify_stream_kernel(const __grid_constant__ StreamArgs args) {
#ifdef KDA_STREAM_CODE
  using Layout = StreamLayout<Tile>;
  using Shared = StreamShared<Tile>;
  extern __shared__ __align__(128) std::byte stream_memory[];
  const SequenceArgs& a = args.sequence;
  Shared& shared = *reinterpret_cast<Shared*>(stream_memory + Layout::kShared);
  float* const u_rows = reinterpret_cast<float*>(stream_memory + Layout::kU);
  DraftProgram* const programs = reinterpret_cast<DraftProgram*>(stream_memory + Layout::programs(a.form.max_nodes));
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared::kRing; ++i) {
      init_barrier(shared.token_full + i, 1);
      init_barrier(shared.token_empty + i, Shared::kWarps);
    }
    for (int i = 0; i < 2; ++i) {
      init_barrier(shared.unit_full + i, 1);
      init_barrier(shared.unit_empty + i, Shared::kWarps);
    }
    init_barrier(&shared.state_full, 1);
    init_barrier(&shared.state_empty, Shared::kWarps);
    fence_barriers();
  }
  __syncthreads();
  wait_for_previous_kernel();
  const int warp = threadIdx.x / kWarp;
  if (warp < Shared::kWarps) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters<Tile, Pending>));
    stream_consumer<Tile, Io, Pending>(a, shared, stream_memory, u_rows, programs);
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters<Tile, Pending>));
    StreamProducer<Tile, Io, Pending>(a, shared, stream_memory, programs, warp - Shared::kWarps).run(args.units);
  }
#endif
}

}  // namespace kda::cuda
