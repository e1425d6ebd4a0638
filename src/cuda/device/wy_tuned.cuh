// Fast verify of 64 or 128 key channels with bf16 tokens: the form of wy.cuh, arranged so that the state's bytes are on
// their way from the first moment and little is left to do when they have arrived.
//
// A block takes Rows value rows of one head. Asynchronous copies bring them into shared memory while all warps prepare
// the nodes: decays are summed along each node's path as logarithms (G), which gives the columns k e^G and q e^G that
// meet the state, and the inner products <k_t, k_i> e^(G_t - G_i) as products of k_t e^(G_t) and k_i e^(-G_i) on tensor
// cores where the second factor has room (per node, from its own path alone), else one by one. From then on every warp
// works alone on 16 rows: one product with the state (tf32, rounded once: 16-bit tokens allow it), the triangular solve
// among the four lanes that share a row, and the stores. A pending commit is applied to the state on its way from
// shared memory to the tensor cores.
#pragma once

#include "cuda/device/async_copy.cuh"
#include "cuda/device/wy.cuh"

namespace kda::cuda {

// Log-decays below this act as zero; bounded, so that sums of them lose nothing.
constexpr float kLeastLogDecay = -128.0f;
// e^(-G) must stay finite: 16 steps of the bounded gate's -5, and half a unit for rounding.
constexpr float kLeastFactoredLogDecay = -80.5f;

// Tensor cores cut the operand's significand to 11 bits. Multiplied with this before, a value is off by no more on one
// side than on the other in the mean, and those of 11 bits come back as they were. One operation, and NaN stays NaN.
constexpr float kCutBalance = 1.0f + 0.7f / 2048;
constexpr float kLog2CutBalance = 4.930159e-4f;

// A tensor of tokens, strides in bytes.
struct WyTokens {
  std::byte* data;
  int token, head;
  __device__ std::byte* at(int t, int h) const { return data + int64_t{t} * token + int64_t{h} * head; }
};

// An index tensor, strides in bytes.
struct WyIndices {
  const std::byte* data;
  int row, column;
  bool wide;
  __device__ int64_t at(int r, int c = 0) const {
    const int32_t* const p = reinterpret_cast<const int32_t*>(data + int64_t{r} * row + int64_t{c} * column);
    const int32_t low = p[0];
    int32_t high = low >> 31;
    if (wide) high = p[1];
    return int64_t{high} << 32 | static_cast<uint32_t>(low);
  }
};

// What the launch passes: the parts of SequenceArgs in the form that costs a warp the fewest instructions.
struct WyTunedArgs {
  WyTokens q, k, v, a, b, out;
  const float *A_log, *dt_bias;
  float scale, lower_bound;
  WyIndices cu_seqlens, slots, dst_slots, parents, record_rows, tips, pending_rows;  // data may be null but cu_seqlens'
  FlagView has_state;
  bool parents_by_row;
  int64_t tokens;
  StatePool state, dst;
  RecordBuffer records;
  RecordLayout layout;
  Form form;
  int node_bytes;
  int splits;
  uint32_t* status;
};

template <class T, int KP, int NT, int Rows, bool Pending>
struct WyTunedShared {
  static constexpr int kWarps = 8, kThreads = kWarps * kWarp;
  static constexpr int kRowWarps = Rows / kWyRows;
  static constexpr int kColumns = 2 * NT;
  static_assert(NT % 8 == 0 && NT <= kWyNodes && kRowWarps <= kWarps);
  static constexpr int kStateRowBytes = KP * int{sizeof(T)};

  static constexpr int kState = 0;
  static constexpr int kColumnsAt = kState + Rows * kStateRowBytes;     // fp32 [kColumns][KP]
  static constexpr int kInverseAt = kColumnsAt + 4 * kColumns * KP;     // fp32 [NT][KP]: k e^-G
  static constexpr int kGramAt = kInverseAt + 4 * NT * KP;              // float4 [NT][NT / 2]
  static constexpr int kGatesAt = kGramAt + 16 * NT * NT / 2;           // fp32 [NT][KP]
  static constexpr int kNodesAt = kGatesAt + 4 * NT * KP;               // 32 bits [NT] each: beta, norm of k, walked
  static constexpr int kPendingGatesAt = kNodesAt + 12 * NT;            // fp16 [NT][KP]
  static constexpr int kPendingKeysAt = kPendingGatesAt + 2 * NT * KP;  // fp32 [NT][KP]: k e^(G_tip - G)
  static constexpr int kPendingDecayAt = kPendingKeysAt + 4 * NT * KP;  // fp32 [KP]: e^(G_tip)
  static constexpr int kBytes = Pending ? kPendingDecayAt + 4 * KP : kPendingGatesAt;

  // Blocks of a multiprocessor with 228 KB, by its shared memory and by the registers that a thread needs.
  static constexpr int kBlocks = 233472 / (kBytes + 1024) >= 3 && !Pending && (NT == 8 || KP == 64) ? 3 : 2;
};

__device__ inline float clamped_log_decay(float g) {  // keeps NaN
  float x;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(g), "f"(kLeastLogDecay));
  return x;
}
__device__ inline float exponential_cut(float x) {  // e^x, ready to be cut
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(__fmaf_rn(x, 1.4426950408889634f, kLog2CutBalance)));
  return y;
}

__device__ inline float4 read4(const void* p) { return *static_cast<const float4*>(p); }
__device__ inline float4 unpack4(uint2 x, DType dtype) {
  const float2 a = unpack(x.x, dtype), b = unpack(x.y, dtype);
  return {a.x, a.y, b.x, b.y};
}
__device__ inline uint2 load_pair(const std::byte* p) { return *reinterpret_cast<const uint2*>(p); }
__device__ inline float4 add4(float4 a, float4 b) {
  return {__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)};
}
__device__ inline float4 mul4(float4 a, float4 b) {
  return {__fmul_rn(a.x, b.x), __fmul_rn(a.y, b.y), __fmul_rn(a.z, b.z), __fmul_rn(a.w, b.w)};
}
__device__ inline float4 mul4(float4 a, float b) { return mul4(a, float4{b, b, b, b}); }
__device__ inline float dot4(float4 a, float4 b, float sum) {
  return __fmaf_rn(a.w, b.w, __fmaf_rn(a.z, b.z, __fmaf_rn(a.y, b.y, __fmaf_rn(a.x, b.x, sum))));
}

// A node as the warp that prepares it holds it: lane l has channels 4l to 4l + 3.
struct WyNode {
  float4 k, q, log_decay;
};

// Normalises a token, leaves its gates, step and norm in shared memory and its inputs in the record.
template <int KP>
__device__ inline WyNode prepare_node(uint2 raw_k, uint2 raw_q, uint2 raw_a, uint32_t raw_beta, float4 bias, bool has_A,
                                      float exp_A, float lower_bound, const Form& f, const RecordTargets& record,
                                      float* gates, float* beta, float* norm) {
  const int lane = threadIdx.x % kWarp;
  const bool live = KP == 128 || 4 * lane < KP;
  const float4 k = unpack4(raw_k, DType::bf16), q = unpack4(raw_q, DType::bf16);
  float rk = 1.0f, rq = 1.0f;
  if (f.l2norm) {
    float kk = dot4(k, k, 0), qq = dot4(q, q, 0);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      kk = __fadd_rn(kk, __shfl_xor_sync(kFullMask, kk, mask));
      qq = __fadd_rn(qq, __shfl_xor_sync(kFullMask, qq, mask));
    }
    rk = rsqrtf(__fadd_rn(kk, kL2NormEpsilon));
    rq = rsqrtf(__fadd_rn(qq, kL2NormEpsilon));
  }
  float4 g = gate_log_decay(f, unpack4(raw_a, DType::bf16), bias, has_A, exp_A, lower_bound);
  const uint2 half = {pack(g.x, g.y, DType::fp16), pack(g.z, g.w, DType::fp16)};
  g = unpack4(half, DType::fp16);
  g = {clamped_log_decay(g.x), clamped_log_decay(g.y), clamped_log_decay(g.z), clamped_log_decay(g.w)};
  if (live) {
    if (record.decay) *reinterpret_cast<uint2*>(record.decay + 8 * lane) = half;
    if (record.k) *reinterpret_cast<uint2*>(record.k + 8 * lane) = raw_k;
    *reinterpret_cast<float4*>(gates + 4 * lane) = g;
  }
  if (lane == 0) {
    *beta = step_size(f.beta, unpack(raw_beta, DType::bf16).x);
    *norm = rk;
    if (record.k_rnorm) *record.k_rnorm = {rk, 0.0f};
  }
  return {mul4(k, rk), mul4(q, rq), g};
}

// A draft in the registers of a warp: lane t knows node t.
struct WyDraft {
  int parent;
  unsigned path;  // bit i: node i is on the path to this node, the node included
  bool ok;        // every parent is -1 or an earlier node
};
// Lane t loads the parent of node t as given.
__device__ inline int64_t load_parent(const WyTunedArgs& a, int row, int first_token, int nodes) {
  const int lane = threadIdx.x % kWarp;
  if (a.parents.data == nullptr) return lane - 1;
  if (lane >= nodes || (a.form.single_root && lane == 0)) return -1;
  return a.parents_by_row ? a.parents.at(row, lane) : a.parents.at(first_token + lane);
}
__device__ inline WyDraft make_draft(bool chain, int64_t given, int nodes) {
  const int lane = threadIdx.x % kWarp;
  if (chain) return {lane - 1, (2u << lane) - 1, true};
  const bool good = given >= -1 && given < lane;
  WyDraft d{good ? static_cast<int>(given) : -1, 1u << lane, true};
  d.ok = __all_sync(kFullMask, good || lane >= nodes);
  int next = d.parent;
#pragma unroll
  for (int span = 1; span < kWyNodes; span *= 2) {
    const unsigned above = __shfl_sync(kFullMask, d.path, next < 0 ? lane : next);
    const int beyond = __shfl_sync(kFullMask, next, next < 0 ? lane : next);
    if (next >= 0) {
      d.path |= above;
      next = beyond;
    }
  }
  return d;
}

// Blocks: x = value head and slice of its rows, y = row of the batch.
template <class T, int KP, int NT, int Rows, bool Pending>
__global__ void __launch_bounds__(WyTunedShared<T, KP, NT, Rows, Pending>::kThreads,
                                  WyTunedShared<T, KP, NT, Rows, Pending>::kBlocks)
    wy_tuned_kernel(const __grid_constant__ WyTunedArgs a) {
  using Shared = WyTunedShared<T, KP, NT, Rows, Pending>;
  constexpr int kWarps = Shared::kWarps, kGroups = NT / 8;  // groups of 8 nodes
  constexpr int kColumnBytes = 4 * KP;
  // Bit flipped in the number of a 16-byte piece of odd rows, so that the eight lanes of one access (two rows, four
  // pieces) meet all banks: pieces j of the state, and of the columns the pieces of the same channels.
  constexpr int kStateFlip = 4, kColumnFlip = sizeof(T) == 4 ? 4 : 1;
  extern __shared__ __align__(16) std::byte memory[];
  std::byte* const columns = memory + Shared::kColumnsAt;
  std::byte* const inverse = memory + Shared::kInverseAt;
  float* const gates = reinterpret_cast<float*>(memory + Shared::kGatesAt);
  float* const gram = reinterpret_cast<float*>(memory + Shared::kGramAt);
  float* const betas = reinterpret_cast<float*>(memory + Shared::kNodesAt);
  float* const norms = betas + NT;
  uint32_t* const walked_nodes = reinterpret_cast<uint32_t*>(norms + NT);  // nodes without factored inner products

  wait_for_previous_kernel();
  const Form& f = a.form;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int g = lane / 4, j = lane % 4;
  const bool live_lane = KP == 128 || 4 * lane < KP;
  int hv = static_cast<int>(blockIdx.x), split = 0;
  if (a.splits > 1) split = hv % a.splits, hv /= a.splits;
  const int n = static_cast<int>(blockIdx.y);
  const int h = f.heads_ratio == 1 ? hv : hv / f.heads_ratio;
  const int block_row = split * Rows;
  const bool first_block = blockIdx.x == 0;
  const bool has_rows = warp < Shared::kRowWarps;

  const int64_t begin = a.cu_seqlens.at(n), end = a.cu_seqlens.at(n + 1);
  RowIndices indices;
  if (a.slots.data != nullptr) {
    indices.slot = a.slots.at(n);
    indices.has_state = flag_at(a.has_state, n);
  }
  int64_t record_row = -1, tip = -1, pending_record = -1;
  if (a.records.base != nullptr) record_row = a.record_rows.data != nullptr ? a.record_rows.at(n) : n;
  if (Pending) {
    if (a.dst_slots.data != nullptr) indices.dst_slot = a.dst_slots.at(n);
    tip = a.tips.at(n);
    pending_record = a.pending_rows.at(n);
  }
  uint32_t bits = 0;
  RowTarget target;
  const bool bad_range = begin < 0 || end < begin || end > a.tokens || end - begin > f.max_nodes;
  if (bad_range) {
    bits = KDA_DEVICE_BAD_CU_SEQLENS;
  } else {
    target = resolve_target(indices, a.slots.data != nullptr, Pending && a.dst_slots.data != nullptr, a.state, a.dst,
                            f.null_slot0, bits);
  }
  const int first_token = static_cast<int>(begin), count = bad_range ? 0 : static_cast<int>(end - begin);
  const auto head_of = [&](const StatePool& pool, int64_t slot) {
    return pool.base + (slot * pool.slot_stride + int64_t{hv} * (KP * f.V)) * int64_t{sizeof(T)};
  };
  const auto refuse = [&] {
    if (first_block && threadIdx.x == 0) raise_status(a.status, bits);
    for (int i = threadIdx.x; i < count * Rows; i += Shared::kThreads) {
      *reinterpret_cast<uint16_t*>(a.out.at(first_token + i / Rows, hv) + 2 * (block_row + i % Rows)) = 0;
    }
  };
  if (bad_range || target.null) return refuse();

  // Everything that is read once is asked for here: tokens, values, then the state.
  uint2 raw_k[kGroups], raw_q[kGroups], raw_a[kGroups];
  uint32_t raw_beta[kGroups];
  float4 bias = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    raw_k[i] = raw_q[i] = raw_a[i] = {0, 0};
    raw_beta[i] = 0;
    const int token = first_token + warp + 8 * i;
    if (warp + 8 * i < count && live_lane) {
      raw_k[i] = load_pair(a.k.at(token, h) + 8 * lane);
      raw_q[i] = load_pair(a.q.at(token, h) + 8 * lane);
      raw_a[i] = load_pair(a.a.at(token, hv) + 8 * lane);
      raw_beta[i] = *reinterpret_cast<const uint16_t*>(a.b.at(token, hv));
    }
  }
  const bool has_A = a.A_log != nullptr;
  float A = 0;
  if (has_A) A = a.A_log[hv];
  if (a.dt_bias != nullptr && live_lane) bias = read4(a.dt_bias + hv * KP + 4 * lane);
  const int warp_row = block_row + warp * kWyRows;
  uint2 values[kGroups];  // node 8i + g, rows 4j to 4j + 3 of the warp
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    values[i] = {0, 0};
    if (has_rows && 8 * i + g < count)
      values[i] = load_pair(a.v.at(first_token + 8 * i + g, hv) + 2 * (warp_row + 4 * j));
  }
  const bool chain = a.parents.data == nullptr;
  const int64_t given_parent = load_parent(a, n, first_token, count);
  RecordedPath path;
  const std::byte* pending_row = nullptr;
  if (Pending && tip >= 0 && pending_record >= 0) {
    if (pending_record >= a.records.rows) {
      path.bits = KDA_DEVICE_BAD_RECORD;
    } else {
      pending_row = a.records.base + pending_record * a.records.row_stride;
      path = recorded_path(pending_row, a.layout, kRecordMagic, f.max_nodes, tip);
    }
    bits |= path.bits;
  }

  // The accepted path's nodes: u of the warp's rows, and keys and gates of the nodes that the warp prepares.
  float pending_u[Pending ? NT : 1][2];
  uint2 pending_raw_k[kGroups], pending_raw_g[kGroups];
  float pending_norm[kGroups];
  const int committed = Pending ? __popcll(path.nodes) : 0;
  if (Pending) {
    unsigned rest = static_cast<unsigned>(path.nodes);
    const std::byte* const first = pending_row + a.layout.nodes_begin;
    const std::byte* const first_u = first + 4 * (hv * f.V + warp_row + 4 * (g / 2) + g % 2);
#pragma unroll
    for (int i = 0; i < NT; ++i) {
      if (rest == 0) continue;
      const int64_t offset = int64_t{__ffs(rest) - 1} * a.node_bytes;
      rest &= rest - 1;
      if (has_rows) {
        const float* const u = reinterpret_cast<const float*>(first_u + offset);
        pending_u[i][0] = u[0], pending_u[i][1] = u[2];
      }
      if (i % kWarps == warp) {
        const std::byte* const node = first + offset;
        pending_norm[i / kWarps] = reinterpret_cast<const NormFactor*>(node + a.layout.k_rnorm)[h].high;
        pending_raw_k[i / kWarps] = pending_raw_g[i / kWarps] = {0, 0};
        if (live_lane) {
          pending_raw_k[i / kWarps] = load_pair(node + a.layout.k + 2 * (h * KP + 4 * lane));
          pending_raw_g[i / kWarps] = load_pair(node + a.layout.decay + 2 * (hv * KP + 4 * lane));
        }
      }
    }
  }

  std::byte* const state = memory + Shared::kState + warp * kWyRows * Shared::kStateRowBytes;
  if (has_rows) {
    constexpr int kPieces = Shared::kStateRowBytes / 16, kRowsAtOnce = kWarp / kPieces;
    const bool live = target.slot >= 0;
    const int piece = lane % kPieces, row = lane / kPieces;
    const std::byte* const from =
        (live ? head_of(a.state, target.slot) + warp_row * Shared::kStateRowBytes : a.k.data) + 16 * lane;
    if (live) {
#pragma unroll
      for (int i = 0; i < kWyRows; i += kRowsAtOnce) {
        const int flip = (i + row) % 2 * kStateFlip;
        async_copy16(state + (i + row) * Shared::kStateRowBytes + 16 * (piece ^ flip),
                     from + i * Shared::kStateRowBytes);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kWyRows; i += kRowsAtOnce) {
        *reinterpret_cast<uint4*>(state + (i + row) * Shared::kStateRowBytes + 16 * piece) = {0, 0, 0, 0};
      }
    }
  }

  const WyDraft draft = make_draft(chain, given_parent, count);
  if (!draft.ok) bits |= KDA_DEVICE_BAD_PARENT;
  if (bits & (KDA_DEVICE_BAD_PARENT | KDA_DEVICE_BAD_RECORD | KDA_DEVICE_BAD_TIP)) {  // the row is null
    wait_for_async_copies();
    return refuse();
  }
  if (!Pending || (pending_row == nullptr && target.in_place)) target.dst = -1;

  std::byte* record = nullptr;        // of the row
  std::byte* record_nodes = nullptr;  // its first node
  if (record_row >= 0) {
    if (record_row >= a.records.rows) {
      bits |= KDA_DEVICE_BAD_ENTRY;
    } else {
      record = a.records.base + record_row * a.records.row_stride;
      record_nodes = record + a.layout.nodes_begin;
    }
  }
  if (first_block && threadIdx.x == 0) raise_status(a.status, bits);
  if (record != nullptr && first_block && warp == 0) {
    if (lane == 0) {
      *reinterpret_cast<RecordHeader*>(record) = {kRecordMagic, a.layout.version_form, count, a.layout.geometry};
    }
    RecordParent* const parents = reinterpret_cast<RecordParent*>(record + sizeof(RecordHeader));
    if (lane < f.max_nodes) parents[lane] = {lane < count ? draft.parent : -1, 0};
  }

  if (Pending && live_lane) {
#pragma unroll
    for (int own = 0; own < kGroups; ++own) {
      const int i = warp + kWarps * own;
      if (i >= committed) continue;
      *reinterpret_cast<uint2*>(memory + Shared::kPendingGatesAt + 2 * i * KP + 8 * lane) = pending_raw_g[own];
    }
  }

  WyNode nodes[kGroups];
  const float exp_A = has_A ? exponential(A) : 1.0f;
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const int t = warp + 8 * i;
    nodes[i] = {};
    if (t >= count) continue;
    RecordTargets targets;
    if (record != nullptr && split == 0) {
      std::byte* const at = record_nodes + int64_t{t} * a.node_bytes;
      targets.decay = at + a.layout.decay + 2 * hv * KP;
      if (f.heads_ratio == 1 || hv % f.heads_ratio == 0) {
        targets.k = at + a.layout.k + 2 * h * KP;
        targets.k_rnorm = reinterpret_cast<NormFactor*>(at + a.layout.k_rnorm) + h;
      }
    }
    nodes[i] = prepare_node<KP>(raw_k[i], raw_q[i], raw_a[i], raw_beta[i], bias, has_A, exp_A, a.lower_bound, f,
                                targets, gates + t * KP, betas + t, norms + t);
  }
  __syncthreads();

  if (Pending) {
#pragma unroll
    for (int own = 0; own < kGroups; ++own) {
      const int i = warp + kWarps * own;
      if (!live_lane || (i >= committed && i > 0)) continue;
      const auto log_decay = [&](int x) {
        const uint2 half = load_pair(memory + Shared::kPendingGatesAt + 2 * x * KP + 8 * lane);
        const float4 d = unpack4(half, DType::fp16);
        return float4{clamped_log_decay(d.x), clamped_log_decay(d.y), clamped_log_decay(d.z), clamped_log_decay(d.w)};
      };
      const auto decay4 = [](float4 x) { return float4{decay_of(x.x), decay_of(x.y), decay_of(x.z), decay_of(x.w)}; };
      float4 after = {0, 0, 0, 0};
      for (int x = i + 1; x < committed; ++x) after = add4(after, log_decay(x));
      if (i < committed) {
        const float4 k = mul4(unpack4(pending_raw_k[own], DType::bf16), pending_norm[own]);
        *reinterpret_cast<float4*>(memory + Shared::kPendingKeysAt + 4 * i * KP + 16 * lane) = mul4(k, decay4(after));
      }
      if (i == 0) {
        if (committed > 0) after = add4(after, log_decay(0));
        *reinterpret_cast<float4*>(memory + Shared::kPendingDecayAt + 16 * lane) = decay4(after);
      }
    }
  }

  // gram[i][t / 8][t % 8 / 2]: {key, key, query, query} of nodes t and t + 1 with node i: 0 unless i is on
  // their path, and the key of a node with itself, so that its u stays what it is once it is known
  const auto gram_at = [&](int i, int t) { return gram + 4 * (i * (NT / 2) + t / 2) + t % 2; };
  unsigned unfactored = 0;  // bit i: this warp's node 8i + warp decays too far for e^(-G)
#pragma unroll
  for (int own = 0; own < kGroups; ++own) {
    const int t = warp + 8 * own;
    const unsigned on_path = __shfl_sync(kFullMask, draft.path, t);
    float4 sum = {0, 0, 0, 0};
    if (t < count && live_lane) {
#pragma unroll
      for (int i = 0; i < 8 * (own + 1); ++i) {
        if (on_path >> i & 1) sum = add4(sum, read4(gates + i * KP + 4 * lane));
      }
    }
    const float least = fminf(fminf(sum.x, sum.y), fminf(sum.z, sum.w));
    if (__any_sync(kFullMask, least < kLeastFactoredLogDecay)) unfactored |= 1u << own;
    if (live_lane) {
      float4 down, up;
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        (&down.x)[x] = exponential_cut((&sum.x)[x]);
        (&up.x)[x] = exponential_cut(-(&sum.x)[x]);
      }
      const int offset = 16 * (lane ^ (t % 2 * kColumnFlip));
      // columns of a group of 8 nodes: 8 keys, then 8 queries
      std::byte* const key = columns + (16 * own + warp) * kColumnBytes + offset;
      *reinterpret_cast<float4*>(key) = mul4(nodes[own].k, down);
      *reinterpret_cast<float4*>(key + 8 * kColumnBytes) = mul4(nodes[own].q, down);
      *reinterpret_cast<float4*>(inverse + t * kColumnBytes + offset) = mul4(nodes[own].k, up);
    }
  }
  if (unfactored != 0) {
#pragma unroll
    for (int own = 0; own < kGroups; ++own) {
      if (!(unfactored >> own & 1)) continue;
      const int t = warp + 8 * own;
      if (lane < NT) gram_at(lane, t)[0] = gram_at(lane, t)[2] = 0;
      __syncwarp();
      float4 walked = {0, 0, 0, 0};
      float key_dot = 0, query_dot = dot4(nodes[own].q, nodes[own].k, 0);
      for (int i = t; i >= 0;) {
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2) {
          key_dot = __fadd_rn(key_dot, __shfl_xor_sync(kFullMask, key_dot, mask));
          query_dot = __fadd_rn(query_dot, __shfl_xor_sync(kFullMask, query_dot, mask));
        }
        if (lane == 0) gram_at(i, t)[0] = key_dot, gram_at(i, t)[2] = query_dot;
        if (live_lane) walked = add4(walked, read4(gates + i * KP + 4 * lane));
        i = __shfl_sync(kFullMask, draft.parent, i);
        if (i < 0) break;
        key_dot = query_dot = 0;
        if (live_lane) {
          const float4 raw = unpack4(load_pair(a.k.at(first_token + i, h) + 8 * lane), DType::bf16);
          const float4 decay = {exponential(walked.x), exponential(walked.y), exponential(walked.z),
                                exponential(walked.w)};
          const float4 k_i = mul4(mul4(raw, norms[i]), decay);
          key_dot = dot4(nodes[own].k, k_i, 0);
          query_dot = dot4(nodes[own].q, k_i, 0);
        }
      }
    }
  }
  if (lane < kGroups) walked_nodes[warp + 8 * lane] = unfactored >> lane & 1;
  __syncthreads();

  // Where lane (g, j) finds the 16 bytes that hold its channels of row g in step b of a product: steps come in pairs,
  // whose pieces odd rows have exchanged (for 16-byte pieces of columns that belong to 8 channels, in neighbours).
  constexpr int kSteps = KP / 16;  // of 16 channels: 4 a lane
  const auto column_offset = [&](int b) {
    if constexpr (sizeof(T) == 4) return 64 * (b ^ (g & 1)) + 16 * j;
    return 128 * (b / 2) + 32 * j + 16 * ((b & 1) ^ (g & 1));
  };

  // The inner products: one warp for each 8 nodes and 8 others.
  constexpr int kGramTiles = kGroups * (kGroups + 1) / 2;
  const int tile = kWarps - 1 - warp;
  if (tile < kGramTiles) {
    const int later = tile == 0 ? 0 : 1, earlier = tile == 2 ? 1 : 0;  // groups of the nodes and of the ancestors
    float sums[4][4] = {};
    const std::byte* const rows = columns + (16 * later + g) * kColumnBytes;
    const std::byte* const others = inverse + (8 * earlier + g) * kColumnBytes;
#pragma unroll
    for (int b = 0; b < kSteps; ++b) {
      const float4 k = read4(rows + column_offset(b)), q = read4(rows + 8 * kColumnBytes + column_offset(b)),
                   o = read4(others + column_offset(b));
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const uint32_t x[4] = {__float_as_uint((&k.x)[i]), __float_as_uint((&q.x)[i]), __float_as_uint((&k.x)[i + 1]),
                               __float_as_uint((&q.x)[i + 1])};
        mma_tf32(sums[b % 2 * 2 + i / 2], x, __float_as_uint((&o.x)[i]), __float_as_uint((&o.x)[i + 1]));
      }
    }
    const int t = 8 * later + g;
    const unsigned on_path = __shfl_sync(kFullMask, draft.path, t);
    if (walked_nodes[t] == 0) {
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int i = 8 * earlier + 2 * j + x % 2;
        const float dot = __fadd_rn(__fadd_rn(sums[0][x], sums[1][x]), __fadd_rn(sums[2][x], sums[3][x]));
        gram_at(i, t)[x / 2 * 2] = (on_path >> i & 1) && (x >= 2 || i != t) ? dot : 0.0f;
      }
    }
  }

  // [group][keys, queries]: rows g' and g' + 2 of the warp, nodes 8 group + 2j and 2j + 1. A warp's row r stands in
  // line 4(r / 4) + ... of the product so that lane (g, j) of the transposed result has rows 4j to 4j + 3.
  float sums[kGroups][2][4] = {};
  const int own_row = 4 * (g / 2) + g % 2;  // and own_row + 2
  if (has_rows) {
    wait_for_async_copies();
    __syncwarp();
    const std::byte* const rows = state + own_row * Shared::kStateRowBytes;
    std::byte* const dst =
        target.dst >= 0 ? head_of(a.dst, target.dst) + int64_t{warp_row + own_row} * Shared::kStateRowBytes : nullptr;
    constexpr int kChannels = 16 / int{sizeof(T)};  // of one piece
    constexpr int kParts = kChannels / 4;
    const bool two_groups = kGroups > 1 && count > 8;
#pragma unroll
    for (int b = 0; b < KP / (4 * kChannels); ++b) {
      const int piece = (4 * b + j) ^ (g % 2 * kStateFlip);
      float s[2][kChannels];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint4 raw = *reinterpret_cast<const uint4*>(rows + 2 * h * Shared::kStateRowBytes + 16 * piece);
        const uint32_t* const x = &raw.x;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (sizeof(T) == 4) {
            s[h][i] = __uint_as_float(x[i]);
          } else {
            s[h][2 * i] = __uint_as_float(x[i] << 16);
            s[h][2 * i + 1] = __uint_as_float(x[i] & 0xffff0000u);
          }
        }
      }
      const int channel = kChannels * (4 * b + j);
      if (Pending) {
        const std::byte* const vectors = memory + 4 * channel;
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          const float4 decay = read4(vectors + Shared::kPendingDecayAt + 16 * p);
#pragma unroll
          for (int x = 0; x < 4; ++x) {
            s[0][4 * p + x] = __fmul_rn(s[0][4 * p + x], (&decay.x)[x]);
            s[1][4 * p + x] = __fmul_rn(s[1][4 * p + x], (&decay.x)[x]);
          }
        }
#pragma unroll
        for (int i = 0; i < NT; ++i) {
          if (i >= committed) break;
#pragma unroll
          for (int p = 0; p < kParts; ++p) {
            const float4 k = read4(vectors + Shared::kPendingKeysAt + 4 * i * KP + 16 * p);
#pragma unroll
            for (int x = 0; x < 4; ++x) {
              s[0][4 * p + x] = __fmaf_rn(pending_u[i][0], (&k.x)[x], s[0][4 * p + x]);
              s[1][4 * p + x] = __fmaf_rn(pending_u[i][1], (&k.x)[x], s[1][4 * p + x]);
            }
          }
        }
        if (dst != nullptr) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            std::byte* const to = dst + 2 * h * Shared::kStateRowBytes + channel * int{sizeof(T)};
            if constexpr (sizeof(T) == 4) {
              __stcs(reinterpret_cast<float4*>(to), make_float4(s[h][0], s[h][1], s[h][2], s[h][3]));
            } else {
              __stcs(reinterpret_cast<uint4*>(to),
                     make_uint4(pack(s[h][0], s[h][1], DType::bf16), pack(s[h][2], s[h][3], DType::bf16),
                                pack(s[h][4], s[h][5], DType::bf16), pack(s[h][6], s[h][7], DType::bf16)));
            }
          }
        }
      }
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        uint32_t x[2][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          constexpr bool kCut = sizeof(T) == 4 || Pending;  // bf16 values fit as they are
#pragma unroll
          for (int line = 0; line < 2; ++line) {
            const float value = s[line][4 * p + i];
            x[line][i] = __float_as_uint(kCut ? __fmul_rn(value, kCutBalance) : value);
          }
        }
        const std::byte* const at = columns + g * kColumnBytes + column_offset(kParts * b + p);
#pragma unroll
        for (int n8 = 0; n8 < 2 * kGroups; ++n8) {
          if (n8 >= 2 && !two_groups) break;
          const float4 y = read4(at + 8 * n8 * kColumnBytes);
#pragma unroll
          for (int i = 0; i < 4; i += 2) {
            const uint32_t lines[4] = {x[0][i], x[1][i], x[0][i + 1], x[1][i + 1]};
            mma_tf32(sums[n8 / 2][n8 % 2], lines, __float_as_uint((&y.x)[i]), __float_as_uint((&y.x)[i + 1]));
          }
        }
      }
    }
  }
  __syncthreads();
  if (!has_rows) return;

  // The solve. Lane (g, j) has nodes 2j and 2j + 1 of each group; u of each node in turn goes to the other three lanes.
  float r[kGroups][4];  // line x / 2, node x % 2
  float beta[kGroups][2];
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const uint32_t lines[2] = {transpose_8x8(values[i].x), transpose_8x8(values[i].y)};
#pragma unroll
    for (int line = 0; line < 2; ++line) {
      const float2 v = unpack(lines[line], DType::bf16);
      r[i][2 * line] = __fsub_rn(v.x, sums[i][0][2 * line]);
      r[i][2 * line + 1] = __fsub_rn(v.y, sums[i][0][2 * line + 1]);
    }
    const float2 pair = *reinterpret_cast<const float2*>(betas + 8 * i + 2 * j);
    beta[i][0] = pair.x, beta[i][1] = pair.y;
  }
#pragma unroll
  for (int t = 0; t < NT; ++t) {
    if (t >= count) break;
    constexpr int kLanes = 4;
    const int owner = t % 8 / 2;
    const float own[2] = {__fmul_rn(beta[t / 8][t % 2], r[t / 8][t % 2]),
                          __fmul_rn(beta[t / 8][t % 2], r[t / 8][2 + t % 2])};
    const float u[2] = {__shfl_sync(kFullMask, own[0], owner, kLanes), __shfl_sync(kFullMask, own[1], owner, kLanes)};
    if (j == owner) r[t / 8][t % 2] = own[0], r[t / 8][2 + t % 2] = own[1];
#pragma unroll
    for (int i = t / 8; i < kGroups; ++i) {
      const float4 dots = read4(gram + 4 * (t * (NT / 2) + 4 * i + j));
#pragma unroll
      for (int x = 0; x < 2; ++x) {
#pragma unroll
        for (int line = 0; line < 2; ++line) {
          r[i][2 * line + x] = __fmaf_rn(-(&dots.x)[x], u[line], r[i][2 * line + x]);
          sums[i][1][2 * line + x] = __fmaf_rn((&dots.x)[2 + x], u[line], sums[i][1][2 * line + x]);
        }
      }
    }
  }

#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const float scale = a.scale;
    const float* const w = sums[i][1];
    const uint2 out = {transpose_8x8(pack(__fmul_rn(scale, w[0]), __fmul_rn(scale, w[1]), DType::bf16)),
                       transpose_8x8(pack(__fmul_rn(scale, w[2]), __fmul_rn(scale, w[3]), DType::bf16))};
    if (8 * i + g < count) {
      *reinterpret_cast<uint2*>(a.out.at(first_token + 8 * i + g, hv) + 2 * (warp_row + 4 * j)) = out;
    }
    if (record == nullptr) continue;
    // lanes of neighbouring lines exchange halves: even ones get four rows of node 2j, odd ones of node 2j + 1
    const bool odd = g % 2 != 0;
    const float other[2] = {__shfl_xor_sync(kFullMask, select(odd, r[i][0], r[i][1]), 4),
                            __shfl_xor_sync(kFullMask, select(odd, r[i][2], r[i][3]), 4)};
    const float mine[2] = {select(odd, r[i][1], r[i][0]), select(odd, r[i][3], r[i][2])};
    const int t = 8 * i + 2 * j + (odd ? 1 : 0);
    if (t < count) {
      std::byte* const at = record_nodes + int64_t{t} * a.node_bytes + 4 * (hv * f.V + warp_row + 4 * (g / 2));
      *reinterpret_cast<float4*>(at) = {select(odd, other[0], mine[0]), select(odd, mine[0], other[0]),
                                        select(odd, other[1], mine[1]), select(odd, mine[1], other[1])};
    }
  }
}

}  // namespace kda::cuda
