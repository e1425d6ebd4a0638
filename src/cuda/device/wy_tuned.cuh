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
  static constexpr int kGatesAt = kGramAt + 16 * NT * NT / 2;           // fp16 [NT][KP]
  static constexpr int kNodesAt = kGatesAt + 2 * NT * KP;               // 32 bits [NT] each: beta, norm of k, walked
  static constexpr int kPendingGatesAt = kNodesAt + 12 * NT;            // fp16 [NT][KP]
  static constexpr int kPendingKeysAt = kPendingGatesAt + 2 * NT * KP;  // fp32 [NT][KP]: k e^(G_tip - G)
  static constexpr int kPendingDecayAt = kPendingKeysAt + 4 * NT * KP;  // fp32 [KP]: e^(G_tip)
  static constexpr int kBytes = Pending ? kPendingDecayAt + 4 * KP : kPendingGatesAt;

  // Blocks a multiprocessor of 227 KB has room for, and the registers for.
  static constexpr int kBlocks = 233472 / (kBytes + 1024) >= 3 && !Pending ? 3 : 2;
};

__device__ inline float clamped_log_decay(float g) { return g < kLeastLogDecay ? kLeastLogDecay : g; }  // keeps NaN

__device__ inline float4 read4(const std::byte* p) { return *reinterpret_cast<const float4*>(p); }
__device__ inline float4 read_half4(const std::byte* p) {
  const uint2 x = *reinterpret_cast<const uint2*>(p);
  const float2 a = unpack(x.x, DType::fp16), b = unpack(x.y, DType::fp16);
  return {a.x, a.y, b.x, b.y};
}
__device__ inline void write_half4(std::byte* p, float4 x) {
  *reinterpret_cast<uint2*>(p) = {pack(x.x, x.y, DType::fp16), pack(x.z, x.w, DType::fp16)};
}
__device__ inline float4 add4(float4 a, float4 b) {
  return {__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)};
}
__device__ inline float4 mul4(float4 a, float4 b) {
  return {__fmul_rn(a.x, b.x), __fmul_rn(a.y, b.y), __fmul_rn(a.z, b.z), __fmul_rn(a.w, b.w)};
}
__device__ inline float4 exponential4(float4 x) {
  return {exponential(x.x), exponential(x.y), exponential(x.z), exponential(x.w)};
}
__device__ inline float dot4(float4 a, float4 b, float sum) {
  return __fmaf_rn(a.w, b.w, __fmaf_rn(a.z, b.z, __fmaf_rn(a.y, b.y, __fmaf_rn(a.x, b.x, sum))));
}
__device__ inline float4 to_tf32x4(float4 x) {
  return {__uint_as_float(to_tf32(x.x)), __uint_as_float(to_tf32(x.y)), __uint_as_float(to_tf32(x.z)),
          __uint_as_float(to_tf32(x.w))};
}

// A node as the warp that prepares it holds it: lane l has channels 4l to 4l + 3.
struct WyNode {
  float4 k, q, log_decay;
};

// Normalises a token, leaves its gates, step and norm in shared memory and its inputs in the record.
template <class Io, int KP>
__device__ inline WyNode prepare_node(const TokenLoads<Io, KP>& x, const TokenInputs& in, const Form& f,
                                      const RecordTargets& record, std::byte* gates, float* beta, float* norm) {
  const int lane = threadIdx.x % kWarp;
  const bool has_A = in.A_log.data != nullptr;
  const float exp_A = has_A ? exponential(to_float(x.A, DType::fp32)) : 1.0f;
  const float4 k = to_float4(x.k[0], DType::bf16), q = to_float4(x.q[0], DType::bf16);
  NormFactor rk;
  float rq = 1.0f;
  if (f.l2norm) {
    float kk = dot4(k, k, 0), qq = dot4(q, q, 0);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      kk = __fadd_rn(kk, __shfl_xor_sync(kFullMask, kk, mask));
      qq = __fadd_rn(qq, __shfl_xor_sync(kFullMask, qq, mask));
    }
    rk = {rsqrtf(__fadd_rn(kk, kL2NormEpsilon)), 0.0f};
    rq = rsqrtf(__fadd_rn(qq, kL2NormEpsilon));
  }
  float4 g = gate_log_decay(f, to_float4(x.a[0], DType::bf16), to_float4(x.bias[0], DType::fp32), has_A, exp_A,
                            in.lower_bound);
  const uint2 half = {pack(g.x, g.y, DType::fp16), pack(g.z, g.w, DType::fp16)};
  if (4 * lane < KP) {
    if (record.decay) *reinterpret_cast<uint2*>(record.decay + 8 * lane) = half;
    if (record.k) *reinterpret_cast<uint2*>(record.k + 8 * lane) = make_uint2(x.k[0].bits[0], x.k[0].bits[1]);
  }
  const float2 low = unpack(half.x, DType::fp16), high = unpack(half.y, DType::fp16);
  g = {clamped_log_decay(low.x), clamped_log_decay(low.y), clamped_log_decay(high.x), clamped_log_decay(high.y)};
  if (4 * lane < KP) write_half4(gates + 8 * lane, g);
  if (lane == 0) {
    *beta = step_size(f.beta, to_float(x.beta, DType::bf16));
    *norm = rk.high;
    if (record.k_rnorm) *record.k_rnorm = rk;
  }
  return {{normalised(k.x, rk), normalised(k.y, rk), normalised(k.z, rk), normalised(k.w, rk)},
          {__fmul_rn(q.x, rq), __fmul_rn(q.y, rq), __fmul_rn(q.z, rq), __fmul_rn(q.w, rq)},
          g};
}

// A draft in the registers of a warp: lane t knows node t.
struct WyDraft {
  int parent;
  unsigned path;  // bit i: node i is on the path to this node, the node included
  bool ok;        // every parent is -1 or an earlier node
};
__device__ inline WyDraft load_draft(const Draft& draft, bool single_root, int64_t row, int64_t first_token,
                                     int nodes) {
  const int lane = threadIdx.x % kWarp;
  int64_t given = -1;
  if (lane < nodes) given = draft_parent(draft, single_root, row, first_token, lane);
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

template <class T, int KP, int NT, int Rows, bool Pending>
__global__ void __launch_bounds__(WyTunedShared<T, KP, NT, Rows, Pending>::kThreads,
                                  WyTunedShared<T, KP, NT, Rows, Pending>::kBlocks)
    wy_tuned_kernel(const __grid_constant__ SequenceArgs a) {
  using Io = FixedIo<DType::bf16>;
  using Shared = WyTunedShared<T, KP, NT, Rows, Pending>;
  constexpr int kWarps = Shared::kWarps, kGroups = NT / 8;  // groups of 8 nodes
  constexpr int kColumnBytes = 4 * KP;
  // Bit flipped in the number of a 16-byte piece of odd rows, so that the eight lanes of one access (two rows, four
  // pieces) meet all banks: pieces j of the state, and of the columns the pieces of the same channels.
  constexpr int kStateFlip = 4, kColumnFlip = sizeof(T) == 4 ? 4 : 1;
  extern __shared__ __align__(16) std::byte memory[];
  std::byte* const columns = memory + Shared::kColumnsAt;
  std::byte* const inverse = memory + Shared::kInverseAt;
  std::byte* const gates = memory + Shared::kGatesAt;
  float* const gram = reinterpret_cast<float*>(memory + Shared::kGramAt);
  float* const betas = reinterpret_cast<float*>(memory + Shared::kNodesAt);
  float* const norms = betas + NT;
  uint32_t* const walked_nodes = reinterpret_cast<uint32_t*>(norms + NT);  // nodes without factored inner products

  wait_for_previous_kernel();
  const Form& f = a.form;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int g = lane / 4, j = lane % 4;
  const int split = static_cast<int>(blockIdx.x % a.splits);
  const int64_t unit = blockIdx.x / a.splits;
  const int64_t n = unit / f.HV;
  const int hv = static_cast<int>(unit % f.HV);
  const int block_row = split * Rows;
  const int64_t head_elements = int64_t{KP} * f.V;
  const bool first_block = hv == 0 && split == 0;
  const bool has_rows = warp < Shared::kRowWarps;

  uint32_t bits = 0;
  const RowIndices indices = load_row_indices(a.rows, n);
  int64_t record_row = -1, tip = -1, pending_record = -1;
  if (a.records.base != nullptr) record_row = present(a.record_rows) ? index_at(a.record_rows, n) : n;
  if (Pending) {
    tip = index_at(a.pending.tips, n);
    pending_record = index_at(a.pending.record_rows, n);
  }
  const RowRange range = resolve_range(a.rows, n, f.max_nodes, bits);
  RowTarget target;
  if (!range.bad) target = resolve_target(indices, a.rows, a.state, a.dst, f.null_slot0, bits);
  const int count = static_cast<int>(range.count);
  const auto head_of = [&](const StatePool& pool, int64_t slot) {
    return pool.base + (slot * pool.slot_stride + hv * head_elements) * int64_t{sizeof(T)};
  };
  const auto refuse = [&] {
    if (first_block && threadIdx.x == 0) raise_status(a.status, bits);
    for (int i = threadIdx.x; i < count * Rows; i += Shared::kThreads) {
      const int64_t t = range.begin + i / Rows;
      store_element(a.tokens.out.data, DType::bf16,
                    t * a.tokens.out.token_stride + hv * a.tokens.out.head_stride + block_row + i % Rows, 0.0f);
    }
  };
  if (range.bad || target.null) return refuse();

  // Everything that is read once is asked for here: tokens, values, then the state.
  TokenLoads<Io, KP> loads[kGroups];
  uint2 values[kGroups];  // node 8i + g, rows 4j to 4j + 3 of the warp
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    if (warp + 8 * i < count) loads[i].load(a.tokens, f, range.begin + warp + 8 * i, hv);
  }
  const int warp_row = block_row + warp * kWyRows;
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    values[i] = {0, 0};
    if (has_rows && 8 * i + g < count) {
      const int64_t at = (range.begin + 8 * i + g) * a.tokens.v.token_stride + hv * a.tokens.v.head_stride;
      values[i] = *reinterpret_cast<const uint2*>(a.tokens.v.data + 2 * (at + warp_row + 4 * j));
    }
  }
  std::byte* const state = memory + Shared::kState + warp * kWyRows * Shared::kStateRowBytes;
  if (has_rows) {
    constexpr int kPieces = Shared::kStateRowBytes / 16, kRowsAtOnce = kWarp / kPieces;
    const bool live = target.slot >= 0;
    const int piece = lane % kPieces, row = lane / kPieces;
    const std::byte* const from =
        (live ? head_of(a.state, target.slot) + warp_row * Shared::kStateRowBytes : a.tokens.k.data) + 16 * lane;
#pragma unroll
    for (int i = 0; i < kWyRows; i += kRowsAtOnce) {
      const int flip = (i + row) % 2 * kStateFlip;
      async_copy16(state + (i + row) * Shared::kStateRowBytes + 16 * (piece ^ flip),
                   from + (live ? i * Shared::kStateRowBytes : 0), live);
    }
  }

  const WyDraft draft = load_draft(a.draft, f.single_root, n, range.begin, count);
  if (!draft.ok) bits |= KDA_DEVICE_BAD_PARENT;
  RecordedPath path;
  const std::byte* pending_row = nullptr;
  if (Pending && tip >= 0 && pending_record >= 0) {
    if (pending_record >= a.records.rows) {
      path.bits = KDA_DEVICE_BAD_RECORD;
    } else {
      pending_row = a.records.base + pending_record * a.records.row_stride;
      path = recorded_path(pending_row, a.record_layout, kRecordMagic, f.max_nodes, tip);
    }
    bits |= path.bits;
  }
  if (bits & (KDA_DEVICE_BAD_PARENT | KDA_DEVICE_BAD_RECORD | KDA_DEVICE_BAD_TIP)) {  // the row is null
    wait_for_async_copies();
    return refuse();
  }
  if (!Pending || (pending_row == nullptr && target.in_place)) target.dst = -1;

  std::byte* record = nullptr;
  if (record_row >= 0) {
    if (record_row >= a.records.rows) {
      bits |= KDA_DEVICE_BAD_ENTRY;
    } else {
      record = a.records.base + record_row * a.records.row_stride;
    }
  }
  if (first_block && threadIdx.x == 0) raise_status(a.status, bits);
  if (record != nullptr && first_block && warp == 0) {
    if (lane == 0) {
      *reinterpret_cast<RecordHeader*>(record) = {kRecordMagic, a.record_layout.version_form, count,
                                                  a.record_layout.geometry};
    }
    RecordParent* const parents = reinterpret_cast<RecordParent*>(record + sizeof(RecordHeader));
    if (lane < f.max_nodes) parents[lane] = {lane < count ? draft.parent : -1, 0};
  }

  // the accepted path's nodes: gates to shared memory; the rows' u stay with the warp that needs them
  float pending_u[Pending ? NT : 1][2];
  float4 pending_k[kGroups], pending_g[kGroups];
  const int committed = Pending ? __popcll(path.nodes) : 0;
  if (Pending) {
    unsigned rest = static_cast<unsigned>(path.nodes);
#pragma unroll
    for (int i = 0; i < NT; ++i) {
      if (rest == 0) continue;
      const std::byte* const node =
          pending_row + a.record_layout.nodes_begin + (__ffs(rest) - 1) * a.record_layout.node_bytes;
      rest &= rest - 1;
      if (has_rows) {
        const float* const u =
            reinterpret_cast<const float*>(node) + int64_t{hv} * f.V + warp_row + 4 * (g / 2) + g % 2;
        pending_u[i][0] = u[0], pending_u[i][1] = u[2];
      }
      if (i % kWarps == warp) {
        const int h = hv / f.heads_ratio;
        const NormFactor rk = reinterpret_cast<const NormFactor*>(node + a.record_layout.k_rnorm)[h];
        float4& k = pending_k[i / kWarps];
        float4& log_decay = pending_g[i / kWarps];
        k = log_decay = {0, 0, 0, 0};
        if (4 * lane < KP) {
          k = load4<true>(node + a.record_layout.k, DType::bf16, int64_t{h} * KP + 4 * lane);
          log_decay = load4<true>(node + a.record_layout.decay, DType::fp16, int64_t{hv} * KP + 4 * lane);
        }
        k = {normalised(k.x, rk), normalised(k.y, rk), normalised(k.z, rk), normalised(k.w, rk)};
#pragma unroll
        for (int x = 0; x < 4; ++x) (&log_decay.x)[x] = clamped_log_decay((&log_decay.x)[x]);
        if (4 * lane < KP) write_half4(memory + Shared::kPendingGatesAt + 2 * i * KP + 8 * lane, log_decay);
      }
    }
  }

  WyNode nodes[kGroups];
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const int t = warp + 8 * i;
    nodes[i] = {};
    if (t >= count) continue;
    RecordTargets targets;
    if (record != nullptr && split == 0) {
      std::byte* const at = record + a.record_layout.nodes_begin + t * a.record_layout.node_bytes;
      const int h = hv / f.heads_ratio;
      targets.decay = at + a.record_layout.decay + int64_t{hv} * KP * 2;
      if (hv % f.heads_ratio == 0) {
        targets.k = at + a.record_layout.k + int64_t{h} * KP * 2;
        targets.k_rnorm = reinterpret_cast<NormFactor*>(at + a.record_layout.k_rnorm) + h;
      }
    }
    nodes[i] = prepare_node<Io, KP>(loads[i], a.tokens, f, targets, gates + 2 * t * KP, betas + t, norms + t);
  }
  __syncthreads();

  if (Pending) {
#pragma unroll
    for (int own = 0; own < kGroups; ++own) {
      const int i = warp + kWarps * own;
      if (4 * lane >= KP || (i >= committed && i > 0)) continue;
      float4 after = {0, 0, 0, 0};
      for (int x = i + 1; x < committed; ++x) {
        after = add4(after, read_half4(memory + Shared::kPendingGatesAt + 2 * x * KP + 8 * lane));
      }
      const auto decay4 = [](float4 x) { return float4{decay_of(x.x), decay_of(x.y), decay_of(x.z), decay_of(x.w)}; };
      if (i < committed) {
        *reinterpret_cast<float4*>(memory + Shared::kPendingKeysAt + 4 * i * KP + 16 * lane) =
            mul4(pending_k[own], decay4(after));
      }
      if (i == 0) {
        if (committed > 0) after = add4(after, pending_g[0]);
        *reinterpret_cast<float4*>(memory + Shared::kPendingDecayAt + 16 * lane) = decay4(after);
      }
    }
  }

  unsigned unfactored = 0;  // bit i: this warp's node 8i + warp decays too far for e^(-G)
#pragma unroll
  for (int own = 0; own < kGroups; ++own) {
    const int t = warp + 8 * own;
    const unsigned on_path = t < count ? __shfl_sync(kFullMask, draft.path, t) : 0;
    float4 sum = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8 * (own + 1); ++i) {
      if ((on_path >> i & 1) && 4 * lane < KP) sum = add4(sum, read_half4(gates + 2 * i * KP + 8 * lane));
    }
    const bool far = sum.x < kLeastFactoredLogDecay || sum.y < kLeastFactoredLogDecay ||
                     sum.z < kLeastFactoredLogDecay || sum.w < kLeastFactoredLogDecay;
    if (__any_sync(kFullMask, far)) unfactored |= 1u << own;
    if (4 * lane < KP) {
      const float4 down = exponential4(sum), up = exponential4({-sum.x, -sum.y, -sum.z, -sum.w});
      const int offset = 16 * (lane ^ (t % 2 * kColumnFlip));
      // columns of a group of 8 nodes: 8 keys, then 8 queries
      std::byte* const key = columns + (16 * own + warp) * kColumnBytes + offset;
      *reinterpret_cast<float4*>(key) = to_tf32x4(mul4(nodes[own].k, down));
      *reinterpret_cast<float4*>(key + 8 * kColumnBytes) = to_tf32x4(mul4(nodes[own].q, down));
      *reinterpret_cast<float4*>(inverse + t * kColumnBytes + offset) = to_tf32x4(mul4(nodes[own].k, up));
    }
  }
  // gram[i][t / 8][t % 8 / 2]: {key, key, query, query} of nodes t and t + 1 with their ancestor i
  const auto gram_at = [&](int i, int t) { return gram + 4 * (i * (NT / 2) + t / 2) + t % 2; };
#pragma unroll
  for (int own = 0; own < kGroups; ++own) {
    if (!(unfactored >> own & 1)) continue;
    const int t = warp + 8 * own;
    float4 walked = {0, 0, 0, 0};
    float key_dot = 0, query_dot = dot4(nodes[own].q, nodes[own].k, 0);
    for (int i = t; i >= 0;) {
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) {
        key_dot = __fadd_rn(key_dot, __shfl_xor_sync(kFullMask, key_dot, mask));
        query_dot = __fadd_rn(query_dot, __shfl_xor_sync(kFullMask, query_dot, mask));
      }
      if (lane == 0) gram_at(i, t)[0] = key_dot, gram_at(i, t)[2] = query_dot;
      if (4 * lane < KP) walked = add4(walked, read_half4(gates + 2 * i * KP + 8 * lane));
      i = __shfl_sync(kFullMask, draft.parent, i);
      if (i < 0) break;
      key_dot = query_dot = 0;
      if (4 * lane < KP) {
        const float4 raw = load4<true>(
            a.tokens.k.data, DType::bf16,
            (range.begin + i) * a.tokens.k.token_stride + hv / f.heads_ratio * a.tokens.k.head_stride + 4 * lane);
        const float norm = norms[i];
        const float4 k_i = mul4(mul4(raw, {norm, norm, norm, norm}), exponential4(walked));
        key_dot = dot4(nodes[own].k, k_i, 0);
        query_dot = dot4(nodes[own].q, k_i, 0);
      }
    }
  }
  // The others' inner products: one warp for each 8 nodes and 8 ancestors. Warps that have no rows come first.
  if (lane < kGroups) walked_nodes[warp + 8 * lane] = unfactored >> lane & 1;
  __syncthreads();

  // Where lane (g, j) finds the 16 bytes that hold its channels of row g in step b of a product: steps come in pairs,
  // whose pieces odd rows have exchanged (for 16-byte pieces of columns that belong to 8 channels, in neighbours).
  constexpr int kSteps = KP / 16;  // of 16 channels: 4 a lane
  const auto column_offset = [&](int b) {
    if constexpr (sizeof(T) == 4) return 64 * (b ^ (g & 1)) + 16 * j;
    return 128 * (b / 2) + 32 * j + 16 * ((b & 1) ^ (g & 1));
  };

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
    if (walked_nodes[t] == 0) {
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float dot = __fadd_rn(__fadd_rn(sums[0][x], sums[1][x]), __fadd_rn(sums[2][x], sums[3][x]));
        gram_at(8 * earlier + 2 * j + x % 2, t)[x / 2 * 2] = dot;
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
          // bf16 values are tf32 already
          x[0][i] = sizeof(T) == 2 && !Pending ? __float_as_uint(s[0][4 * p + i]) : to_tf32(s[0][4 * p + i]);
          x[1][i] = sizeof(T) == 2 && !Pending ? __float_as_uint(s[1][4 * p + i]) : to_tf32(s[1][4 * p + i]);
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
  unsigned on_path[kGroups][2];
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const uint32_t lines[2] = {transpose_8x8(values[i].x), transpose_8x8(values[i].y)};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 v = unpack(lines[h], DType::bf16);
      r[i][2 * h] = __fsub_rn(v.x, sums[i][0][2 * h]);
      r[i][2 * h + 1] = __fsub_rn(v.y, sums[i][0][2 * h + 1]);
    }
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const int t = 8 * i + 2 * j + x;
      beta[i][x] = betas[t];
      on_path[i][x] = __shfl_sync(kFullMask, draft.path, t);
    }
  }
#pragma unroll
  for (int t = 0; t < NT; ++t) {
    if (t >= count) break;
    constexpr int kLanes = 4;
    const int owner = t % 8 / 2;
    const float own[2] = {__fmul_rn(beta[t / 8][t % 2], r[t / 8][t % 2]),
                          __fmul_rn(beta[t / 8][t % 2], r[t / 8][2 + t % 2])};
    const float u[2] = {__shfl_sync(kFullMask, own[0], owner, kLanes), __shfl_sync(kFullMask, own[1], owner, kLanes)};
#pragma unroll
    for (int i = t / 8; i < kGroups; ++i) {
      const float4 dots = *reinterpret_cast<const float4*>(gram + 4 * (t * (NT / 2) + 4 * i + j));
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        if (!(on_path[i][x] >> t & 1)) continue;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          r[i][2 * h + x] = __fmaf_rn(-(&dots.x)[x], u[h], r[i][2 * h + x]);
          sums[i][1][2 * h + x] = __fmaf_rn((&dots.x)[2 + x], u[h], sums[i][1][2 * h + x]);
        }
      }
    }
    if (j == owner) r[t / 8][t % 2] = own[0], r[t / 8][2 + t % 2] = own[1];
  }

#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const float scale = a.tokens.scale;
    const float* const w = sums[i][1];
    const uint2 out = {transpose_8x8(pack(__fmul_rn(scale, w[0]), __fmul_rn(scale, w[1]), DType::bf16)),
                       transpose_8x8(pack(__fmul_rn(scale, w[2]), __fmul_rn(scale, w[3]), DType::bf16))};
    if (8 * i + g < count) {
      const int64_t at = (range.begin + 8 * i + g) * a.tokens.out.token_stride + hv * a.tokens.out.head_stride;
      *reinterpret_cast<uint2*>(a.tokens.out.data + 2 * (at + warp_row + 4 * j)) = out;
    }
    if (record == nullptr) continue;
    // lanes of neighbouring lines exchange halves: even ones get four rows of node 2j, odd ones of node 2j + 1
    const bool odd = g % 2 != 0;
    const float other[2] = {__shfl_xor_sync(kFullMask, select(odd, r[i][0], r[i][1]), 4),
                            __shfl_xor_sync(kFullMask, select(odd, r[i][2], r[i][3]), 4)};
    const float mine[2] = {select(odd, r[i][1], r[i][0]), select(odd, r[i][3], r[i][2])};
    const int t = 8 * i + 2 * j + (odd ? 1 : 0);
    if (t < count) {
      std::byte* const at = record + a.record_layout.nodes_begin + t * a.record_layout.node_bytes +
                            4 * (int64_t{hv} * f.V + warp_row + 4 * (g / 2));
      *reinterpret_cast<float4*>(at) = {select(odd, other[0], mine[0]), select(odd, mine[0], other[0]),
                                        select(odd, other[1], mine[1]), select(odd, mine[1], other[1])};
    }
  }
}

}  // namespace kda::cuda
