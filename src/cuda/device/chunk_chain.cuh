// Fast extend, the part that is serial over chunks: a warp owns 16 value rows of one state in fp32 registers (the
// accumulators of mma.sync) and walks the packets of its row. Rows of the state never meet, so warps need nothing of one
// another but the packets, which a block shares through a ring in shared memory.
#pragma once

#include "cuda/device/chunk.cuh"
#include "cuda/device/snapshots.cuh"

namespace kda::cuda::chunk {

constexpr int kStages = 4;
constexpr int kWarpRows = 16;

// Packets on their way from global to shared memory. From Hopper on one thread starts a bulk copy and barriers in shared
// memory tell its end; before, every thread copies its part and the block meets once a packet.
template <int Bytes, int W>
struct PacketRing {
  std::byte* buffer;    // [kStages][Bytes]
  uint64_t* full;       // [kStages]
  uint64_t* empty;      // [kStages]
  const std::byte* source;
  int64_t stride;  // between packets of a head
  int count;       // packets in all

#if __CUDA_ARCH__ >= 900
  __device__ static uint32_t address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
  __device__ static void wait(uint64_t* barrier, int phase) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
        ::"r"(address(barrier)), "r"(phase)
        : "memory");
  }
  __device__ void begin() {
    if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(full + s)) : "memory");
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(empty + s)), "r"(W) : "memory");
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages - 1 && i < count; ++i) start(i);
    }
  }
  __device__ void start(int i) {
    const int s = i % kStages;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(full + s)), "r"(Bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     address(buffer + s * Bytes)),
                 "l"(source + i * stride), "r"(Bytes), "r"(address(full + s))
                 : "memory");
  }
  // The packet i, ready to be read; starts a later one.
  __device__ const std::byte* get(int i) {
    const int next = i + kStages - 1;
    if (threadIdx.x == 0 && next < count) {
      if (i > 0) wait(empty + next % kStages, ((i - 1) / kStages) & 1);
      start(next);
    }
    wait(full + i % kStages, (i / kStages) & 1);
    return buffer + i % kStages * Bytes;
  }
  __device__ void release(int i) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) {
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(empty + i % kStages)) : "memory");
    }
  }
#else
  __device__ void begin() {
    for (int i = 0; i < kStages - 1; ++i) start(i);
  }
  __device__ void start(int i) {
    if (i < count) {
      for (int at = threadIdx.x * 16; at < Bytes; at += W * kWarp * 16) {
        const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(buffer + i % kStages * Bytes + at));
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(source + i * stride + at) : "memory");
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  __device__ const std::byte* get(int i) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    __syncthreads();
    start(i + kStages - 1);
    return buffer + i % kStages * Bytes;
  }
  __device__ void release(int) {}
#endif
};

// 16 rows of one head's state: rows 2g and 2g+1 of the warp's, columns as the tiles of mma.sync: tile m of group m/4
// holds in lane j the channels 32(m/4) + 8j + 2(m%4) and the next.
template <int K>
struct ChainState {
  static constexpr int kTiles = K / 8;
  float s[kTiles][4];

  __device__ void zero() {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) s[m][0] = s[m][1] = s[m][2] = s[m][3] = 0;
  }
  __device__ static int64_t at(const Form& f, bool kv, int row, int channel) {
    return kv ? int64_t{channel} * f.V + row : int64_t{row} * K + channel;
  }

  __device__ void load(const std::byte* head, DType dtype, const Form& f, bool kv, int row0) {
    const bool fast = !kv && (reinterpret_cast<uintptr_t>(head) & 15) == 0;
    const int lane = threadIdx.x % kWarp, g = lane / 4, j = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row0 + 2 * g + r;
#pragma unroll
      for (int m = 0; m < kTiles; m += 2) {
        const int channel = 32 * (m / 4) + 8 * j + 2 * (m % 4);
        float4 x;
        if (fast) {
          x = load4<false>(head, dtype, int64_t{row} * K + channel);
        } else {
          x.x = load_element(head, dtype, at(f, kv, row, channel));
          x.y = load_element(head, dtype, at(f, kv, row, channel + 1));
          x.z = load_element(head, dtype, at(f, kv, row, channel + 2));
          x.w = load_element(head, dtype, at(f, kv, row, channel + 3));
        }
        s[m][2 * r] = x.x, s[m][2 * r + 1] = x.y, s[m + 1][2 * r] = x.z, s[m + 1][2 * r + 1] = x.w;
      }
    }
  }

  __device__ void store(std::byte* head, DType dtype, const Form& f, bool kv, int row0) const {
    const int lane = threadIdx.x % kWarp, g = lane / 4, j = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row0 + 2 * g + r;
#pragma unroll
      for (int m = 0; m < kTiles; m += 2) {
        const int channel = 32 * (m / 4) + 8 * j + 2 * (m % 4);
        const float4 x = {s[m][2 * r], s[m][2 * r + 1], s[m + 1][2 * r], s[m + 1][2 * r + 1]};
        if (!kv) {
          store4(head, dtype, int64_t{row} * K + channel, x);
        } else {
          store_element(head, dtype, at(f, kv, row, channel), x.x);
          store_element(head, dtype, at(f, kv, row, channel + 1), x.y);
          store_element(head, dtype, at(f, kv, row, channel + 2), x.z);
          store_element(head, dtype, at(f, kv, row, channel + 3), x.w);
        }
      }
    }
  }

  // Between segments: as the lanes hold it.
  __device__ void load_carry(const float* head, int row0) {
    const float4* from = reinterpret_cast<const float4*>(head + row0 * K) + threadIdx.x % kWarp;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const float4 x = from[m * kWarp];
      s[m][0] = x.x, s[m][1] = x.y, s[m][2] = x.z, s[m][3] = x.w;
    }
  }
  __device__ void store_carry(float* head, int row0) const {
    float4* to = reinterpret_cast<float4*>(head + row0 * K) + threadIdx.x % kWarp;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) to[m * kWarp] = make_float4(s[m][0], s[m][1], s[m][2], s[m][3]);
  }
};

// Values of tokens 8h + 2j + e of a chunk in rows 2g and 2g+1: one pair each.
struct ChunkValues {
  uint32_t pair[2][2];
  __device__ void load(const TokenView& v, bool aligned, const std::byte* chunk, int live) {
    const int j = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int t = 8 * h + 2 * j + e;
        pair[h][e] = 0;
        if (t < live) {
          const std::byte* p = chunk + t * v.token_stride * 2;
          pair[h][e] = aligned ? load_bits32(p) : load_bits16(p) | load_bits16(p + 2) << 16;
        }
      }
    }
  }
};

// S and the chunk's values in, S after the chunk and o = scale (Qhat S + P u) out; o[h][2r + e] is token 8h + 2j + e.
template <int K>
__device__ inline void advance(ChainState<K>& state, const std::byte* packet, const float (&v)[2][4], float (&o)[2][4]) {
  using P = Packet<K>;
  const int lane = threadIdx.x % kWarp, j = lane % 4;
  const std::byte* const own = packet + lane * 16;
  uint32_t a[K / 16][4];
#pragma unroll
  for (int x = 0; x < K / 16; ++x) {
    const float(&low)[4] = state.s[2 * x];
    const float(&high)[4] = state.s[2 * x + 1];
    a[x][0] = pack_bf16(low[0], low[1]), a[x][1] = pack_bf16(low[2], low[3]);
    a[x][2] = pack_bf16(high[0], high[1]), a[x][3] = pack_bf16(high[2], high[3]);
  }
  float even[2][4] = {}, odd[2][4] = {};
#pragma unroll
  for (int s = 0; s < P::kGroups; ++s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 b = *reinterpret_cast<const uint4*>(own + P::kKhat + h * P::kHalf + s * 512);
      mma_bf16(even[h], a[2 * s], b.x, b.y);
      mma_bf16(odd[h], a[2 * s + 1], b.z, b.w);
    }
  }
  uint32_t r[2][4], u[2][4];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    // the columns of a tile in the order 0, 2, 4, 6, 1, 3, 5, 7: accumulators then are operands
    float rest[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) rest[i] = __fsub_rn(v[h][i], __fadd_rn(even[h][i], odd[h][i]));
    r[h][0] = tf32(rest[0]), r[h][1] = tf32(rest[2]), r[h][2] = tf32(rest[1]), r[h][3] = tf32(rest[3]);
  }
  float corrections[2][4] = {};
  {
    const std::byte* const t = packet + P::kT + lane * 8;
    const uint2 t00 = *reinterpret_cast<const uint2*>(t), t10 = *reinterpret_cast<const uint2*>(t + 256),
                t11 = *reinterpret_cast<const uint2*>(t + 512);
    mma_tf32(corrections[0], r[0], t00.x, t00.y);
    mma_tf32(corrections[1], r[0], t10.x, t10.y);
    mma_tf32(corrections[1], r[1], t11.x, t11.y);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < 4; ++i) o[h][i] = 0;
  }
#pragma unroll
  for (int s = 0; s < P::kGroups; ++s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 b = *reinterpret_cast<const uint4*>(own + P::kQhat + h * P::kHalf + s * 512);
      mma_bf16(o[h], a[2 * s], b.x, b.y);
      mma_bf16(o[h], a[2 * s + 1], b.z, b.w);
    }
  }
#pragma unroll
  for (int s = 0; s < P::kGroups; ++s) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 d = *reinterpret_cast<const float4*>(packet + P::kDecay + (32 * s + 8 * j + 4 * half) * 4);
      float(&low)[4] = state.s[4 * s + 2 * half];
      float(&high)[4] = state.s[4 * s + 2 * half + 1];
      low[0] = __fmul_rn(low[0], d.x), low[1] = __fmul_rn(low[1], d.y);
      low[2] = __fmul_rn(low[2], d.x), low[3] = __fmul_rn(low[3], d.y);
      high[0] = __fmul_rn(high[0], d.z), high[1] = __fmul_rn(high[1], d.w);
      high[2] = __fmul_rn(high[2], d.z), high[3] = __fmul_rn(high[3], d.w);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    u[h][0] = tf32(corrections[h][0]), u[h][1] = tf32(corrections[h][2]);
    u[h][2] = tf32(corrections[h][1]), u[h][3] = tf32(corrections[h][3]);
  }
#pragma unroll
  for (int x = 0; x < K / 16; ++x) {
    const uint4 b = *reinterpret_cast<const uint4*>(own + P::kKend + x * 512);
    const float2 b0 = unpack(b.x, DType::fp16), b1 = unpack(b.y, DType::fp16);
    const float2 b2 = unpack(b.z, DType::fp16), b3 = unpack(b.w, DType::fp16);
    mma_tf32(state.s[2 * x], u[0], __float_as_uint(b0.x), __float_as_uint(b0.y));
    mma_tf32(state.s[2 * x + 1], u[0], __float_as_uint(b2.x), __float_as_uint(b2.y));
    mma_tf32(state.s[2 * x], u[1], __float_as_uint(b1.x), __float_as_uint(b1.y));
    mma_tf32(state.s[2 * x + 1], u[1], __float_as_uint(b3.x), __float_as_uint(b3.y));
  }
  {
    const std::byte* const p = packet + P::kP + lane * 8;
    const uint2 p00 = *reinterpret_cast<const uint2*>(p), p10 = *reinterpret_cast<const uint2*>(p + 256),
                p11 = *reinterpret_cast<const uint2*>(p + 512);
    mma_tf32(o[0], u[0], p00.x, p00.y);
    mma_tf32(o[1], u[0], p10.x, p10.y);
    mma_tf32(o[1], u[1], p11.x, p11.y);
  }
}

// Writes a chunk's outputs; `chunk` is the address of rows 2*2j.. of the warp in the chunk's first token.
__device__ inline void store_outputs(const float (&o)[2][4], float scale, const TokenView& out, bool aligned,
                                     std::byte* chunk, int live) {
  const int g = threadIdx.x % kWarp / 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    // rows 2g of the warp, then rows 2g+1; after the transposition this lane has token g and value rows 4j to 4j+3
    const uint32_t even =
        transpose8(pack(__fmul_rn(o[h][0], scale), __fmul_rn(o[h][1], scale), out.dtype));
    const uint32_t odd = transpose8(pack(__fmul_rn(o[h][2], scale), __fmul_rn(o[h][3], scale), out.dtype));
    const uint32_t low = __byte_perm(even, odd, 0x5410), high = __byte_perm(even, odd, 0x7632);
    const int t = 8 * h + g;
    if (t >= live) continue;
    std::byte* const p = chunk + t * out.token_stride * 2;
    if (aligned) {
      *reinterpret_cast<uint2*>(p) = make_uint2(low, high);
    } else {
      uint16_t* const x = reinterpret_cast<uint16_t*>(p);
      x[0] = static_cast<uint16_t>(low), x[1] = static_cast<uint16_t>(low >> 16);
      x[2] = static_cast<uint16_t>(high), x[3] = static_cast<uint16_t>(high >> 16);
    }
  }
}

template <int K, int W>
__device__ inline void chain(const Args& a, int64_t block, std::byte* ring_buffer, uint64_t* barriers) {
  using P = Packet<K>;
  constexpr int kBlockRows = W * kWarpRows;
  const Form& f = a.form;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, j = lane % 4;
  const int split = static_cast<int>(block % a.splits);
  const int64_t unit = block / a.splits;
  const int hv = static_cast<int>(unit % f.HV);
  const int64_t n = unit / f.HV;
  const int block_row = split * kBlockRows, row0 = block_row + warp * kWarpRows;
  const bool answers = hv == 0 && split == 0 && threadIdx.x == 0;  // for the row's status bits

  uint32_t bits = 0;
  const RowRange range = resolve_range(a.rows, n, INT64_MAX, bits);
  if (range.bad) {
    if (answers) raise_status(a.status, bits);
    return;
  }
  const int64_t number = first_chunk(range, n), chunks = chunks_of(range);
  const bool starts = number >= a.first && number < a.end;
  const int64_t begin = a.first > number ? a.first - number : 0;
  const int64_t end = a.end - number < chunks ? a.end - number : chunks;
  if (!starts && begin >= end) return;  // of another segment

  const RowTarget target = resolve_target(a.rows, a.state, a.dst, f.null_slot0, n, bits);
  if (target.null) {
    if (!starts) return;
    if (answers) raise_status(a.status, bits);
    for (int64_t i = threadIdx.x; i < range.count * kBlockRows; i += W * kWarp) {
      store_element(a.tokens.out.data, a.tokens.out.dtype,
                    (range.begin + i / kBlockRows) * a.tokens.out.token_stride + hv * a.tokens.out.head_stride +
                        block_row + i % kBlockRows,
                    0.0f);
    }
    return;
  }

  PacketRing<P::kBytes, W> ring;
  ring.buffer = ring_buffer;
  ring.full = barriers, ring.empty = barriers + kStages;
  ring.source = a.packets + ((number + begin - a.first) * f.HV + hv) * P::kBytes;
  ring.stride = int64_t{f.HV} * P::kBytes;
  ring.count = static_cast<int>(end - begin);
  ring.begin();

  const TokenInputs& in = a.tokens;
  const int64_t t0 = range.begin + begin * kTokens;
  const std::byte* v_chunk = in.v.data + (t0 * in.v.token_stride + hv * in.v.head_stride + row0 + 2 * g) * 2;
  std::byte* out_chunk = in.out.data + (t0 * in.out.token_stride + hv * in.out.head_stride + row0 + 4 * j) * 2;
  const int64_t v_step = kTokens * in.v.token_stride * 2, out_step = kTokens * in.out.token_stride * 2;
  const int64_t left = range.count - begin * kTokens;  // tokens from here to the row's end
  const auto live_of = [&](int i) {
    const int64_t rest = left - int64_t{i} * kTokens;
    return static_cast<int>(rest < kTokens ? rest : kTokens);
  };
  ChunkValues values, next_values;
  values.load(in.v, a.aligned_values, v_chunk, live_of(0));
  next_values.load(in.v, a.aligned_values, v_chunk + v_step, live_of(1));

  const int64_t head_elements = int64_t{K} * f.V;
  const auto head_of = [&](const StatePool& pool, int64_t slot) {
    return slot_address(pool, pool.base, slot) + hv * head_elements * (pool.dtype == DType::fp32 ? 4 : 2);
  };
  ChainState<K> state;
  if (begin > 0) {
    state.load_carry(a.carry_in + hv * head_elements, row0);
  } else if (target.slot >= 0) {
    state.load(head_of(a.state, target.slot), a.state.dtype, f, a.kv, row0);
  } else {
    state.zero();
  }

  const bool own_snapshots = same_pool(a.snapshots.pool, a.state);
  int64_t next_stop = kNoStop;
  const auto take_snapshots = [&](int64_t position) {
    for_snapshots_at(a.snapshots, n, position, own_snapshots, f.null_slot0, [&](int64_t slot) {
      state.store(head_of(a.snapshots.pool, slot), a.snapshots.pool.dtype, f, a.kv, row0);
    });
    next_stop = next_snapshot(a.snapshots, n, position);
  };
  if (present(a.snapshots.rows)) {
    if (starts) {
      const uint32_t list_bits =
          check_snapshots(a.snapshots, a.rows.count, n, own_snapshots, f.null_slot0, [&](int64_t position) {
            return position <= range.count && (position % kTokens == 0 || position == range.count);
          });
      bits |= list_bits;
      take_snapshots(0);
    } else {
      next_stop = next_snapshot(a.snapshots, n, begin * kTokens);
    }
  }

  for (int i = 0; i < ring.count; ++i) {
    ChunkValues after_next;
    after_next.load(in.v, a.aligned_values, v_chunk + 2 * v_step, live_of(i + 2));
    float v[2][4], o[2][4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float2 x = unpack(values.pair[h][e], in.v.dtype);
        v[h][e] = x.x, v[h][2 + e] = x.y;
      }
    }
    const std::byte* const packet = ring.get(i);
    advance<K>(state, packet, v, o);
    ring.release(i);
    store_outputs(o, in.scale, in.out, a.aligned_values, out_chunk, live_of(i));
    v_chunk += v_step, out_chunk += out_step;
    values = next_values, next_values = after_next;
    const int64_t position = (begin + i + 1) * kTokens;
    if (next_stop <= position) {
      // between borders only the row's end has a state
      while (next_stop < position && next_stop != range.count) next_stop = next_snapshot(a.snapshots, n, next_stop);
      if (next_stop <= position) take_snapshots(next_stop);
    }
  }

  if (end < chunks) {
    state.store_carry(a.carry_out + hv * head_elements, row0);
  } else if (target.dst >= 0 && (range.count > 0 || !target.in_place || target.slot < 0)) {
    // an empty row in place keeps every bit, unless it starts from zero
    state.store(head_of(a.dst, target.dst), a.dst.dtype, f, a.kv, row0);
  }
  if (answers && starts) raise_status(a.status, bits);
}

template <int K, int W>
__global__ void __launch_bounds__(W* kWarp, W == 4 ? 2 : 4) chain_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(128) std::byte ring_buffer[];
  __shared__ __align__(8) uint64_t barriers[2 * kStages];
  wait_for_previous_kernel();
  chain<K, W>(a, blockIdx.x, ring_buffer, barriers);
}

}  // namespace kda::cuda::chunk
