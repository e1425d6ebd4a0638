// Fast verify of 64 or 128 key channels with bf16 tokens: the form of wy.cuh, arranged so that the state's bytes are on
// their way from the first moment and little is left to do when they have arrived.
//
// A block takes Rows value rows of one head. Asynchronous copies bring them into shared memory while all warps prepare
// the nodes: decays are summed along each node's path as logarithms (G), which gives the columns k e^G and q e^G that
// meet the state, and the inner products <k_t, k_i> e^(G_t - G_i) as products of k_t e^(G_t) and k_i e^(-G_i) on tensor
// cores where the second factor has room (per node, from its own path alone), else one by one. From then on every warp
// works alone on 16 or 32 rows: one product with the state (tf32, rounded once: 16-bit tokens allow it), the triangular
// solve among the four lanes that share a row, and the stores. A pending commit is applied to the state on its way from
// shared memory to the tensor cores.
#pragma once

#include "cuda/device/wy_nodes.cuh"

namespace kda::cuda {

// Blocks: x = value head and slice of its rows, y = row of the batch.
template <class T, int KP, int NT, int Rows, bool Pending>
__global__ void __launch_bounds__(WyTunedShared<T, KP, NT, Rows, Pending>::kThreads,
                                  WyTunedShared<T, KP, NT, Rows, Pending>::kBlocks)
    wy_tuned_kernel(const __grid_constant__ WyTunedArgs a) {
  using Shared = WyTunedShared<T, KP, NT, Rows, Pending>;
  constexpr int kWarps = Shared::kWarps, kTiles = Shared::kTiles, kWarpRows = Shared::kWarpRows;
  constexpr int kGroups = NT / 8;  // of 8 nodes
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
  const int warp_row = block_row + warp * kWarpRows;
  uint2 values[kTiles][kGroups];  // node 8i + g, rows 4j to 4j + 3 of the tile
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const bool wanted = has_rows && 8 * i + g < count;
    const std::byte* const v = a.v.at(first_token + 8 * i + g, hv) + 2 * (warp_row + 4 * j);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      values[m][i] = {0, 0};
      if (wanted) values[m][i] = load_pair(v + 2 * kWyRows * m);
    }
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
  float pending_u[Pending ? NT : 1][2 * kTiles];
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
#pragma unroll
        for (int m = 0; m < kTiles; ++m)
          pending_u[i][2 * m] = u[kWyRows * m], pending_u[i][2 * m + 1] = u[kWyRows * m + 2];
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

  std::byte* const state = memory + Shared::kState + warp * kWarpRows * Shared::kStateRowBytes;
  if (has_rows) {
    constexpr int kPieces = Shared::kStateRowBytes / 16, kRowsAtOnce = kWarp / kPieces;
    const bool live = target.slot >= 0;
    const int piece = lane % kPieces, row = lane / kPieces;
    const std::byte* const from =
        (live ? head_of(a.state, target.slot) + warp_row * Shared::kStateRowBytes : a.k.data) + 16 * lane;
    if (live) {
#pragma unroll
      for (int i = 0; i < kWarpRows; i += kRowsAtOnce) {
        const int flip = (i + row) % 2 * kStateFlip;
        async_copy16(state + (i + row) * Shared::kStateRowBytes + 16 * (piece ^ flip),
                     from + i * Shared::kStateRowBytes);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kWarpRows; i += kRowsAtOnce) {
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

  // [tile][group][keys, queries]: rows g' and g' + 2 of the warp, nodes 8 group + 2j and 2j + 1. A warp's row r stands
  // in line 4(r / 4) + ... of the product so that lane (g, j) of the transposed result has rows 4j to 4j + 3.
  float sums[kTiles][kGroups][2][4] = {};
  const int own_row = 4 * (g / 2) + g % 2;  // and own_row + 2
  if (has_rows) {
    wait_for_async_copies();
    __syncwarp();
    const std::byte* const rows = state + own_row * Shared::kStateRowBytes;
    std::byte* const dst =
        target.dst >= 0 ? head_of(a.dst, target.dst) + int64_t{warp_row + own_row} * Shared::kStateRowBytes : nullptr;
    constexpr int kChannels = 16 / int{sizeof(T)};  // of one piece
    constexpr int kParts = kChannels / 4;
    constexpr bool kCut = sizeof(T) == 4 || Pending;  // bf16 values fit as they are
    const bool two_groups = kGroups > 1 && count > 8;
#pragma unroll
    for (int b = 0; b < KP / (4 * kChannels); ++b) {
      const int piece = (4 * b + j) ^ (g % 2 * kStateFlip);
      const int channel = kChannels * (4 * b + j);
      float s[2 * kTiles][kChannels];  // lines g and g + 8 of each tile
#pragma unroll
      for (int line = 0; line < 2 * kTiles; ++line) {
        const int row = line / 2 * kWyRows + line % 2 * 2;
        const uint4 raw = *reinterpret_cast<const uint4*>(rows + row * Shared::kStateRowBytes + 16 * piece);
        const uint32_t* const x = &raw.x;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (sizeof(T) == 4) {
            s[line][i] = __uint_as_float(x[i]);
          } else {
            s[line][2 * i] = __uint_as_float(x[i] << 16);
            s[line][2 * i + 1] = __uint_as_float(x[i] & 0xffff0000u);
          }
        }
      }
      if (Pending) {
        const std::byte* const vectors = memory + 4 * channel;
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          const float4 decay = read4(vectors + Shared::kPendingDecayAt + 16 * p);
#pragma unroll
          for (int line = 0; line < 2 * kTiles; ++line) {
#pragma unroll
            for (int x = 0; x < 4; ++x) s[line][4 * p + x] = __fmul_rn(s[line][4 * p + x], (&decay.x)[x]);
          }
        }
#pragma unroll
        for (int i = 0; i < NT; ++i) {
          if (i >= committed) break;
#pragma unroll
          for (int p = 0; p < kParts; ++p) {
            const float4 k = read4(vectors + Shared::kPendingKeysAt + 4 * i * KP + 16 * p);
#pragma unroll
            for (int line = 0; line < 2 * kTiles; ++line) {
#pragma unroll
              for (int x = 0; x < 4; ++x) {
                s[line][4 * p + x] = __fmaf_rn(pending_u[i][line], (&k.x)[x], s[line][4 * p + x]);
              }
            }
          }
        }
        if (dst != nullptr) {
#pragma unroll
          for (int line = 0; line < 2 * kTiles; ++line) {
            const float* const x = s[line];
            std::byte* const to =
                dst + (line / 2 * kWyRows + line % 2 * 2) * Shared::kStateRowBytes + channel * int{sizeof(T)};
            if constexpr (sizeof(T) == 4) {
              __stcs(reinterpret_cast<float4*>(to), make_float4(x[0], x[1], x[2], x[3]));
            } else {
              __stcs(reinterpret_cast<uint4*>(to),
                     make_uint4(pack(x[0], x[1], DType::bf16), pack(x[2], x[3], DType::bf16),
                                pack(x[4], x[5], DType::bf16), pack(x[6], x[7], DType::bf16)));
            }
          }
        }
      }
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        uint32_t x[2 * kTiles][4];
#pragma unroll
        for (int line = 0; line < 2 * kTiles; ++line) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
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
          for (int m = 0; m < kTiles; ++m) {
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
              const uint32_t lines[4] = {x[2 * m][i], x[2 * m + 1][i], x[2 * m][i + 1], x[2 * m + 1][i + 1]};
              mma_tf32(sums[m][n8 / 2][n8 % 2], lines, __float_as_uint((&y.x)[i]), __float_as_uint((&y.x)[i + 1]));
            }
          }
        }
      }
    }
  }
  __syncthreads();
  if (!has_rows) return;

  // The solve. Lane (g, j) has nodes 2j and 2j + 1 of each group; u of each node in turn goes to the other three lanes.
  float r[kTiles][kGroups][4];  // line x / 2, node x % 2
  float beta[kGroups][2];
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const uint32_t lines[2] = {transpose_8x8(values[m][i].x), transpose_8x8(values[m][i].y)};
#pragma unroll
      for (int line = 0; line < 2; ++line) {
        const float2 v = unpack(lines[line], DType::bf16);
        r[m][i][2 * line] = __fsub_rn(v.x, sums[m][i][0][2 * line]);
        r[m][i][2 * line + 1] = __fsub_rn(v.y, sums[m][i][0][2 * line + 1]);
      }
    }
    const float2 pair = *reinterpret_cast<const float2*>(betas + 8 * i + 2 * j);
    beta[i][0] = pair.x, beta[i][1] = pair.y;
  }
#pragma unroll
  for (int t = 0; t < NT; ++t) {
    if (t >= count) break;
    constexpr int kLanes = 4;
    const int owner = t % 8 / 2;
    float u[kTiles][2];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      float* const own = r[m][t / 8];
      const float first = __fmul_rn(beta[t / 8][t % 2], own[t % 2]);
      const float second = __fmul_rn(beta[t / 8][t % 2], own[2 + t % 2]);
      u[m][0] = __shfl_sync(kFullMask, first, owner, kLanes);
      u[m][1] = __shfl_sync(kFullMask, second, owner, kLanes);
      if (j == owner) own[t % 2] = first, own[2 + t % 2] = second;
    }
#pragma unroll
    for (int i = t / 8; i < kGroups; ++i) {
      const float4 dots = read4(gram + 4 * (t * (NT / 2) + 4 * i + j));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int x = 0; x < 4; ++x) {  // line x / 2, node x % 2
          r[m][i][x] = __fmaf_rn(-(&dots.x)[x % 2], u[m][x / 2], r[m][i][x]);
          sums[m][i][1][x] = __fmaf_rn((&dots.x)[2 + x % 2], u[m][x / 2], sums[m][i][1][x]);
        }
      }
    }
  }

#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    // lanes of neighbouring lines exchange halves of u: even ones get four rows of node 2j, odd ones of node 2j + 1
    const bool odd = g % 2 != 0;
    const int t = 8 * i + 2 * j + (odd ? 1 : 0);
    std::byte* const out = a.out.at(first_token + 8 * i + g, hv) + 2 * (warp_row + 4 * j);
    std::byte* const u = record_nodes + int64_t{t} * a.node_bytes + 4 * (hv * f.V + warp_row + 4 * (g / 2));
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const float scale = a.scale;
      const float* const w = sums[m][i][1];
      const uint2 pairs = {transpose_8x8(pack(__fmul_rn(scale, w[0]), __fmul_rn(scale, w[1]), DType::bf16)),
                           transpose_8x8(pack(__fmul_rn(scale, w[2]), __fmul_rn(scale, w[3]), DType::bf16))};
      if (8 * i + g < count) *reinterpret_cast<uint2*>(out + 2 * kWyRows * m) = pairs;
      if (record == nullptr) continue;
      const float* const x = r[m][i];
      const float other[2] = {__shfl_xor_sync(kFullMask, select(odd, x[0], x[1]), 4),
                              __shfl_xor_sync(kFullMask, select(odd, x[2], x[3]), 4)};
      const float mine[2] = {select(odd, x[1], x[0]), select(odd, x[3], x[2])};
      if (t < count) {
        *reinterpret_cast<float4*>(u + 4 * kWyRows * m) = {
            select(odd, other[0], mine[0]), select(odd, mine[0], other[0]), select(odd, other[1], mine[1]),
            select(odd, mine[1], other[1])};
      }
    }
  }
}

}  // namespace kda::cuda
