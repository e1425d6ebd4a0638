// Fast verify: the ancestor-masked WY form. With S0 the committed state, G the decays' products along paths and u the
// corrections,
//   u_t = beta_t (v_t - S0 (k_t G_t) - sum over ancestors i of u_i <k_t, k_i G_t/G_i>)
//   o_t = scale (S0 (q_t G_t) + sum over ancestors i and t itself of u_i <q_t, k_i G_t/G_i>)
// S0 meets all nodes' keys and queries in one product on tensor cores (tf32 in three terms, which keeps fp32's
// accuracy); a chain, a tree and a forest of as many nodes cost the same. Ratios G_t/G_i are products of decays, never
// divisions.
#pragma once

#include "cuda/device/sequence.cuh"

namespace kda::cuda {

constexpr int kWyNodes = 16;  // most nodes of a row
constexpr int kWyRows = 16;   // rows of a warp

__device__ inline uint32_t to_tf32(float x) {
  uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}

__device__ inline void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 rows of one head's state in the registers of a warp, as mma.sync wants its A operand up to the order of channels:
// lane 4g + j holds rows g and g + 8, and of each block of 4*Vec channels the Vec from Vec*j on.
template <class T, int KP, bool AnyMemory>
struct MmaTile {
  static constexpr int Vec = sizeof(T) == 2 ? 8 : 4;
  static constexpr int kBlocks = KP / (4 * Vec);
  static constexpr int E = KP / 4;
  float s[2][E];

  __device__ static int g() { return threadIdx.x % kWarp / 4; }
  __device__ static int j() { return threadIdx.x % 4; }
  // The channel of element e (a multiple of 4) of this lane.
  __device__ static int channel(int e) { return e / Vec * 4 * Vec + Vec * j() + e % Vec; }

  __device__ void zero() {
#pragma unroll
    for (int e = 0; e < E; ++e) s[0][e] = s[1][e] = 0;
  }

  // kv: the head is [K, V], else [V, K].
  __device__ void load(const std::byte* head, const Form& f, bool kv, int first_row) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + g() + 8 * h;
#pragma unroll
      for (int e = 0; e < E; e += Vec) {
        if constexpr (!AnyMemory) {
          const T* p = reinterpret_cast<const T*>(head) + row * KP + channel(e);
          if constexpr (Vec == 4) {
            const float4 x = __ldcs(reinterpret_cast<const float4*>(p));
            s[h][e] = x.x, s[h][e + 1] = x.y, s[h][e + 2] = x.z, s[h][e + 3] = x.w;
          } else {
            const uint4 x = __ldcs(reinterpret_cast<const uint4*>(p));
            const uint32_t* pair = &x.x;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              s[h][e + 2 * i] = __uint_as_float(pair[i] << 16);
              s[h][e + 2 * i + 1] = __uint_as_float(pair[i] & 0xffff0000u);
            }
          }
        } else {
#pragma unroll
          for (int i = 0; i < Vec; ++i) {
            const int c = channel(e) + i;
            s[h][e + i] = row < f.V && c < f.K ? load_element(head, kDTypeOf<T>, at(f, kv, row, c)) : 0.0f;
          }
        }
      }
    }
  }

  __device__ void store(std::byte* head, DType dtype, const Form& f, bool kv, int first_row) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + g() + 8 * h;
#pragma unroll
      for (int e = 0; e < E; e += Vec) {
        if constexpr (!AnyMemory) {
          T* p = reinterpret_cast<T*>(head) + row * KP + channel(e);
          const float* x = &s[h][e];
          if constexpr (Vec == 4) {
            __stcs(reinterpret_cast<float4*>(p), make_float4(x[0], x[1], x[2], x[3]));
          } else {
            __stcs(reinterpret_cast<uint4*>(p),
                   make_uint4(pack(x[0], x[1], DType::bf16), pack(x[2], x[3], DType::bf16),
                              pack(x[4], x[5], DType::bf16), pack(x[6], x[7], DType::bf16)));
          }
        } else {
#pragma unroll
          for (int i = 0; i < Vec; ++i) {
            const int c = channel(e) + i;
            if (row < f.V && c < f.K) store_element(head, dtype, at(f, kv, row, c), s[h][e + i]);
          }
        }
      }
    }
  }

  // S <- S * decay + u k-hat^T; u of rows g and g + 8. The vectors lie in channel order.
  __device__ void replay(const float* k, const float* decay, const float (&u)[2]) {
#pragma unroll
    for (int e = 0; e < E; e += 4) {
      const float4 k4 = *reinterpret_cast<const float4*>(k + channel(e));
      const float4 a4 = *reinterpret_cast<const float4*>(decay + channel(e));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          s[h][e + i] = __fmaf_rn(u[h], (&k4.x)[i], __fmul_rn(s[h][e + i], (&a4.x)[i]));
        }
      }
    }
  }

  // out[column][row] = S * columns for Tiles * 8 columns. Column n, in channel order, stands at high + n * stride
  // rounded to tf32, and what that leaves at low + n * stride.
  template <int Tiles>
  __device__ void multiply(const float* high, const float* low, int stride, float* out, int out_stride,
                           int local_row) const {
    float main[Tiles][4] = {}, rest[Tiles][4] = {};  // two sums each, so that products wait less for one another
#pragma unroll
    for (int e = 0; e < E; e += 4) {
      float4 b_high[Tiles], b_low[Tiles];
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
        b_high[n] = *reinterpret_cast<const float4*>(high + (8 * n + g()) * stride + channel(e));
        b_low[n] = *reinterpret_cast<const float4*>(low + (8 * n + g()) * stride + channel(e));
      }
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        uint32_t a_high[4], a_low[4];
#pragma unroll
        for (int x = 0; x < 4; ++x) {  // a0, a1: channel of k = j, rows g, g + 8; a2, a3: k = j + 4
          const float value = s[x % 2][e + i + x / 2];
          a_high[x] = to_tf32(value);
          a_low[x] = to_tf32(__fsub_rn(value, __uint_as_float(a_high[x])));
        }
#pragma unroll
        for (int n = 0; n < Tiles; ++n) {
          const float* x = &b_high[n].x;
          const float* y = &b_low[n].x;
          mma_tf32(main[n], a_high, __float_as_uint(x[i]), __float_as_uint(x[i + 1]));
          mma_tf32(rest[n], a_high, __float_as_uint(y[i]), __float_as_uint(y[i + 1]));
          mma_tf32(rest[n], a_low, __float_as_uint(x[i]), __float_as_uint(x[i + 1]));
        }
      }
    }
#pragma unroll
    for (int n = 0; n < Tiles; ++n) {
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        out[(8 * n + 2 * j() + x % 2) * out_stride + local_row + g() + 8 * (x / 2)] = __fadd_rn(main[n][x], rest[n][x]);
      }
    }
  }

 private:
  __device__ static int64_t at(const Form& f, bool kv, int row, int c) {
    return kv ? int64_t{c} * f.V + row : int64_t{row} * f.K + c;
  }
};

template <int KP, int W, int Vec>
struct WyShared {
  static constexpr int kThreads = W * kWarp;
  static constexpr int kBlockRows = W * kWyRows;
  static_assert(kBlockRows <= 128 && kWyNodes % W == 0);
  static constexpr int kRowStride = kBlockRows + 4;
  // Eight lanes of one access (two columns, four positions Vec apart) meet eight different groups of banks.
  static constexpr int kColumnStride = KP + (Vec == 4 ? 16 : 4);
  static constexpr int kVectors = kWyNodes * TokenVectors<KP>::kFloats;
  static constexpr int kColumns = 2 * kWyNodes * kColumnStride;  // twice: rounded to tf32, and the rest
  static constexpr int kProducts = 2 * kWyNodes * kRowStride;
  static constexpr int kValues = kWyNodes * kBlockRows;
  static constexpr int kGram = 2 * kWyNodes * kWyNodes;
  static constexpr int64_t kBytes = 4 * int64_t{kVectors + 2 * kColumns + kProducts + kValues + kGram};
};

struct WyArgs {
  SequenceArgs s;
  bool kv;
};

// Sums 32 values over the warp at once; lane l gets value l. Recursive, so that every index is a constant.
template <int Half>
__device__ inline float sum_by_lane(float (&x)[2 * kWyNodes]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < Half; ++i) {
    const float keep = select(lane & Half, x[Half + i], x[i]), send = select(lane & Half, x[i], x[Half + i]);
    x[i] = __fadd_rn(keep, __shfl_xor_sync(kFullMask, send, Half));
  }
  if constexpr (Half > 1) return sum_by_lane<Half / 2>(x);
  return x[0];
}

template <class T, int KP, int W, class Io>
__global__ void __launch_bounds__(W* kWarp, KP > 128 ? 1 : 16 / W) wy_kernel(const __grid_constant__ WyArgs args) {
  constexpr bool General = !Io::kFixed;
  using Tile = MmaTile<T, KP, General>;
  using Shared = WyShared<KP, W, Tile::Vec>;
  constexpr int kBlockRows = Shared::kBlockRows, kRowStride = Shared::kRowStride, kColumnStride = Shared::kColumnStride;
  extern __shared__ __align__(16) float shared[];
  __shared__ DraftProgram program;
  float* const vectors = shared;
  float* const columns = vectors + Shared::kVectors;  // [2 * kWyNodes][kColumnStride]
  float* const columns_low = columns + Shared::kColumns;
  float* const products = columns_low + Shared::kColumns;  // [2 * kWyNodes][kRowStride]; then u in the first half
  float* const values = products + Shared::kProducts;      // [kWyNodes][kBlockRows]
  float* const gram = values + Shared::kValues;            // [kWyNodes][kWyNodes] pairs: keys, queries
  const auto node_vectors = [&](int t) { return TokenVectors<KP>{vectors + t * TokenVectors<KP>::kFloats}; };

  wait_for_previous_kernel();
  const SequenceArgs& a = args.s;
  const Form& f = a.form;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int split = static_cast<int>(blockIdx.x % a.splits);
  const int64_t unit = blockIdx.x / a.splits;
  const int64_t n = unit / f.HV;
  const int hv = static_cast<int>(unit % f.HV);
  const int block_row = split * kBlockRows;
  const int local_row = warp * kWyRows;
  const int first_row = block_row + local_row;
  const bool works = first_row < f.V;
  const int64_t head_elements = int64_t{f.K} * f.V;
  const bool first_block = hv == 0 && split == 0;

  uint32_t bits = 0;
  const RowRange range = resolve_range(a.rows, n, f.max_nodes, bits);
  RowTarget target;
  if (!range.bad) target = resolve_target(a.rows, a.state, a.dst, f.null_slot0, n, bits);
  if (!present(a.pending.tips)) target.dst = -1;
  const int count = static_cast<int>(range.count);
  auto head_of = [&](const StatePool& pool, int64_t slot) {
    return slot_address(pool, pool.base, slot) + hv * head_elements * (pool.dtype == DType::fp32 ? 4 : 2);
  };
  auto give_zeros = [&] {
    for (int i = threadIdx.x; i < count * kBlockRows; i += Shared::kThreads) {
      const int v = block_row + i % kBlockRows;
      if (v >= f.V) continue;
      const int64_t t = range.begin + i / kBlockRows;
      store_element(a.tokens.out.data, a.tokens.out.dtype,
                    t * a.tokens.out.token_stride + hv * a.tokens.out.head_stride + v, 0.0f);
    }
  };
  if (range.bad || target.null) {
    if (first_block && threadIdx.x == 0) raise_status(a.status, bits);
    if (!range.bad) give_zeros();
    return;
  }

  // The tokens' loads start before the state's, which must wait for nothing else then.
  constexpr int kOwn = kWyNodes / W;  // nodes that a warp prepares
  TokenLoads<Io, KP> loads[Io::kFixed ? kOwn : 1];
  Raw4 raw_values[Io::kFixed ? kOwn : 1];
  const auto load_node = [&](int t, TokenLoads<Io, KP>& node, Raw4& v) {
    const int64_t token = range.begin + t;
    node.load(a.tokens, f, token, hv);
    const int64_t v_offset = token * a.tokens.v.token_stride + hv * a.tokens.v.head_stride + block_row;
    v = {};
    if (4 * lane < kBlockRows && block_row + 4 * lane < f.V) {
      v = load4_raw<Io::kFixed>(a.tokens.v.data, Io::token(a.tokens.v.dtype), v_offset + 4 * lane);
    }
  };
  if constexpr (Io::kFixed) {
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      if (warp + own * W < count) load_node(warp + own * W, loads[own], raw_values[own]);
    }
  }

  Tile tile;
  if (target.slot >= 0 && works) {
    tile.load(head_of(a.state, target.slot), f, args.kv, first_row);
  } else {
    tile.zero();
  }
  if (warp == 0) {
    const bool ok = load_parents(program, a.draft, f.single_root, n, range.begin, count);
    if (lane == 0) program.bad = !ok;
  }

  RecordedPath path;
  const std::byte* pending_row = nullptr;
  if (present(a.pending.tips)) {
    const int64_t tip = index_at(a.pending.tips, n), row = index_at(a.pending.record_rows, n);
    if (tip >= 0 && row >= 0) {
      if (row >= a.records.rows) {
        path.bits = KDA_DEVICE_BAD_RECORD;
      } else {
        pending_row = a.records.base + row * a.records.row_stride;
        path = recorded_path(pending_row, a.record_layout, kRecordMagic, f.max_nodes, tip);
      }
    }
  }

  // prepared tokens and values, every warp its nodes
  std::byte* record = nullptr;
  if (a.records.base != nullptr) {
    const int64_t row = present(a.record_rows) ? index_at(a.record_rows, n) : n;
    if (row >= a.records.rows) {
      bits |= KDA_DEVICE_BAD_ENTRY;
    } else if (row >= 0) {
      record = a.records.base + row * a.records.row_stride;
    }
  }
  __syncthreads();
  if (program.bad) bits |= KDA_DEVICE_BAD_PARENT;
  bits |= path.bits;
  if (bits & (KDA_DEVICE_BAD_PARENT | KDA_DEVICE_BAD_RECORD | KDA_DEVICE_BAD_TIP)) {  // the row is null
    if (first_block && threadIdx.x == 0) raise_status(a.status, bits);
    give_zeros();
    return;
  }

  const bool own_snapshots = same_pool(a.snapshots.pool, a.state);
  auto store_snapshots = [&](int64_t position) {
    if constexpr (General) {
      for_snapshots_at(a.snapshots, n, position, own_snapshots, f.null_slot0, [&](int64_t slot) {
        if (works) tile.store(head_of(a.snapshots.pool, slot), a.snapshots.pool.dtype, f, args.kv, first_row);
      });
    }
  };
  const int g = Tile::g();
  if (present(a.pending.tips)) {
    uint64_t wanted = 0;
    if constexpr (General) wanted = wanted_nodes(a.snapshots, n);
    for (uint64_t rest = path.nodes; rest != 0;) {
      uint64_t staged = rest;
      for (int i = 0; i < kWyNodes && staged != 0; ++i, staged &= staged - 1) {
        if (i % W != warp) continue;
        const std::byte* node =
            pending_row + a.record_layout.nodes_begin + (__ffsll(staged) - 1) * a.record_layout.node_bytes;
        prepare_recorded<KP, 4>(node, a.record_layout.decay, a.record_layout.k, a.record_layout.k_rnorm, f, hv,
                                node_vectors(i));
        const float* u = reinterpret_cast<const float*>(node) + int64_t{hv} * f.V + block_row;
        for (int x = lane; x < kBlockRows; x += kWarp) values[i * kBlockRows + x] = block_row + x < f.V ? u[x] : 0.0f;
      }
      __syncthreads();
      for (int i = 0; i < kWyNodes && rest != 0; ++i, rest &= rest - 1) {
        const float u[2] = {values[i * kBlockRows + local_row + g], values[i * kBlockRows + local_row + g + 8]};
        tile.replay(node_vectors(i).k(), node_vectors(i).decay(), u);
        if (wanted >> (__ffsll(rest) - 1) & 1) store_snapshots(__ffsll(rest) - 1);
      }
      __syncthreads();
    }
    if (pending_row == nullptr && target.in_place) target.dst = -1;
    if (target.dst >= 0 && works) tile.store(head_of(a.dst, target.dst), a.dst.dtype, f, args.kv, first_row);
    if (General && first_block) {
      bits |= check_snapshots(a.snapshots, a.rows.count, n, own_snapshots, f.null_slot0,
                              [&](int64_t node) { return node < f.max_nodes && (path.nodes >> node & 1) != 0; });
    }
  }

  if (record != nullptr && first_block && warp == 0) {
    if (lane == 0) {
      *reinterpret_cast<RecordHeader*>(record) = {kRecordMagic, a.record_layout.version_form, count,
                                                  a.record_layout.geometry};
    }
    RecordParent* parents = reinterpret_cast<RecordParent*>(record + sizeof(RecordHeader));
    for (int t = lane; t < f.max_nodes; t += kWarp) parents[t] = {t < count ? program.parent[t] : -1, 0};
  }

#pragma unroll
  for (int own = 0; own < kOwn; ++own) {
    const int t = warp + own * W;
    if (t >= count) continue;
    const int held = Io::kFixed ? own : 0;
    if constexpr (!Io::kFixed) load_node(t, loads[0], raw_values[0]);
    if (4 * lane < kBlockRows) {
      *reinterpret_cast<float4*>(values + t * kBlockRows + 4 * lane) =
          to_float4(raw_values[held], Io::token(a.tokens.v.dtype));
    }
    RecordTargets targets;
    if (record != nullptr && split == 0) {
      std::byte* const at = record + a.record_layout.nodes_begin + t * a.record_layout.node_bytes;
      const int h = hv / f.heads_ratio;
      targets.decay = at + a.record_layout.decay + int64_t{hv} * f.K * (f.fp16_decay ? 2 : 4);
      if (hv % f.heads_ratio == 0) {
        targets.k = at + a.record_layout.k + int64_t{h} * f.K * (f.io == DType::fp32 ? 4 : 2);
        targets.k_rnorm = reinterpret_cast<NormFactor*>(at + a.record_layout.k_rnorm) + h;
      }
    }
    finish_token<Io, KP, 4>(loads[held], a.tokens, f, node_vectors(t), targets);
  }
  __syncthreads();

  // Per node, from the node up to its root: r = product of the decays on the way; the two dots with each ancestor; at
  // the root r is the node's G. The lanes' parts of all dots are summed together at the end: lane d gets the d-th
  // ancestor's key dot, lane 16 + d its query dot.
#pragma unroll 1
  for (int t = warp; t < kWyNodes; t += W) {
    constexpr int kChunks = (KP + 127) / 128;
    float4 k[kChunks], q[kChunks], r[kChunks];
    const TokenVectors<KP> own = node_vectors(t);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int channel = 128 * c + 4 * lane;
      k[c] = q[c] = r[c] = {0, 0, 0, 0};
      if (t < count && channel < KP) {
        k[c] = *reinterpret_cast<const float4*>(own.k() + channel);
        q[c] = *reinterpret_cast<const float4*>(own.q() + channel);
        r[c] = *reinterpret_cast<const float4*>(own.decay() + channel);
      }
    }
    float dots[2 * kWyNodes];
#pragma unroll
    for (int x = 0; x < 2 * kWyNodes; ++x) dots[x] = 0;
    int ancestor_of_lane = -1;
    int i = t < count ? program.parent[t] : -1;
#pragma unroll
    for (int d = 0; d < kWyNodes - 1; ++d) {
      if (i < 0) continue;
      const TokenVectors<KP> ancestor = node_vectors(i);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int channel = 128 * c + 4 * lane;
        if (channel >= KP) continue;
        const float4 k_i = *reinterpret_cast<const float4*>(ancestor.k() + channel);
        const float4 a_i = *reinterpret_cast<const float4*>(ancestor.decay() + channel);
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const float m = __fmul_rn((&k_i.x)[x], (&r[c].x)[x]);
          dots[d] = __fmaf_rn((&k[c].x)[x], m, dots[d]);
          dots[kWyNodes + d] = __fmaf_rn((&q[c].x)[x], m, dots[kWyNodes + d]);
          (&r[c].x)[x] = __fmul_rn((&r[c].x)[x], (&a_i.x)[x]);
        }
      }
      if (lane % kWyNodes == d) ancestor_of_lane = i;
      i = program.parent[i];
    }
    if (t < count && program.parent[t] >= 0) {
      const float dot = sum_by_lane<kWyNodes>(dots);
      if (ancestor_of_lane >= 0) gram[2 * (t * kWyNodes + ancestor_of_lane) + lane / kWyNodes] = dot;
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int channel = 128 * c + 4 * lane;
      if (channel >= KP) continue;
      // columns of a group of 8 nodes: 8 keys, then 8 queries
      float* const at = columns + (t / 8 * 16 + t % 8) * kColumnStride + channel;
      const auto put = [&](const float4 vector, float* to) {
        float4 high, low;
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const float value = __fmul_rn((&vector.x)[x], (&r[c].x)[x]);
          (&high.x)[x] = __uint_as_float(to_tf32(value));
          (&low.x)[x] = __uint_as_float(to_tf32(__fsub_rn(value, (&high.x)[x])));
        }
        *reinterpret_cast<float4*>(to) = high;
        *reinterpret_cast<float4*>(to + Shared::kColumns) = low;
      };
      put(k[c], at);
      put(q[c], at + 8 * kColumnStride);
    }
  }
  __syncthreads();

  if (works) {
    if (count > 8) {
      tile.template multiply<4>(columns, columns_low, kColumnStride, products, kRowStride, local_row);
    } else {
      tile.template multiply<2>(columns, columns_low, kColumnStride, products, kRowStride, local_row);
    }
  }
  __syncthreads();

  // one thread a row: the triangular solve over ancestors, then the outputs; pairs that are no ancestors are passed
  // over
  const bool has_record = pinned(record != nullptr) != 0;
  for (int x = threadIdx.x; x < kBlockRows; x += Shared::kThreads) {
    const int row = block_row + x;
    if (row >= f.V) break;
    float u[kWyNodes];
    std::byte* u_record = has_record ? record + a.record_layout.nodes_begin + 4 * (int64_t{hv} * f.V + row) : nullptr;
    int64_t out = range.begin * a.tokens.out.token_stride + hv * a.tokens.out.head_stride + row;
#pragma unroll
    for (int t = 0; t < kWyNodes; ++t) {
      if (t >= count) break;
      const int column = t / 8 * 16 + t % 8;
      float p = products[column * kRowStride + x], w = products[(column + 8) * kRowStride + x];
      const unsigned path = static_cast<unsigned>(program.path[t]);
#pragma unroll
      for (int i = 0; i < t; ++i) {
        const float2 pair = *reinterpret_cast<const float2*>(gram + 2 * (t * kWyNodes + i));
        if (path >> i & 1) {
          p = __fmaf_rn(pair.x, u[i], p);
          w = __fmaf_rn(pair.y, u[i], w);
        }
      }
      const RowResult result = finish_row(node_vectors(t), values[t * kBlockRows + x], p, w, a.tokens.scale);
      u[t] = result.u;
      if constexpr (General) products[column * kRowStride + x] = result.u;
      store_element(a.tokens.out.data, Io::token(a.tokens.out.dtype), out, result.out);
      out += a.tokens.out.token_stride;
      if (has_record) {
        *reinterpret_cast<float*>(u_record) = result.u;
        u_record += a.record_layout.node_bytes;
      }
    }
  }

  if (General && (a.node_states != nullptr || present(a.node_slots))) {
    __syncthreads();
    const Tile committed = tile;
    for (int t = 0; t < count; ++t) {
      tile = committed;
      for (uint64_t nodes = program.path[t]; nodes != 0; nodes &= nodes - 1) {
        const int i = __ffsll(nodes) - 1;
        const float* u_i = products + (i / 8 * 16 + i % 8) * kRowStride + local_row;
        const float u[2] = {u_i[g], u_i[g + 8]};
        tile.replay(node_vectors(i).k(), node_vectors(i).decay(), u);
      }
      if (a.node_states != nullptr) {
        const int64_t at = present(a.record_rows) ? index_at(a.record_rows, n) : n;
        if (at >= 0 && at < a.node_states_rows && t < a.node_states_nodes) {
          const int64_t element = at * a.node_states_row_stride + t * a.node_states_node_stride + hv * head_elements;
          if (works) {
            tile.store(a.node_states + element * (a.node_states_dtype == DType::fp32 ? 4 : 2), a.node_states_dtype, f,
                       args.kv, first_row);
          }
        } else if (at >= 0) {
          bits |= KDA_DEVICE_BAD_ENTRY;
        }
      }
      if (present(a.node_slots)) {
        const int64_t slot = index_at(a.node_slots, n, t);
        const bool skip = slot < 0 || (f.null_slot0 && slot == 0 && same_pool(a.node_pool, a.state));
        if (!skip && slot < a.node_pool.slots) {
          if (works) tile.store(head_of(a.node_pool, slot), a.node_pool.dtype, f, args.kv, first_row);
        } else if (!skip) {
          bits |= KDA_DEVICE_BAD_ENTRY;
        }
      }
    }
  }
  if (first_block && threadIdx.x == 0) raise_status(a.status, bits);
}

}  // namespace kda::cuda
