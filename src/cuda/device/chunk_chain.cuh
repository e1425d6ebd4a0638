// Fast extend, the part that is serial over chunks: a warp owns 16 value rows of one state in fp32 registers (the
// accumulators of mma.sync) and walks the packets of its row. Rows of the state never meet, so warps need nothing of
// one another but the packets, which a block shares through a ring in shared memory.
#pragma once

#include "cuda/device/barrier.cuh"
#include "cuda/device/chunk.cuh"
#include "cuda/device/snapshots.cuh"

namespace kda::cuda::chunk {

constexpr int kStages = 4;
constexpr int kAhead = kStages - 1;  // packets under way besides the one in use
constexpr int kWarpRows = 16;

// Packets on their way from global to shared memory. From Hopper on one thread starts a bulk copy and barriers in
// shared memory tell its end; before, every thread copies its part and the block meets once a packet.
template <int Bytes, int W>
struct PacketRing {
  std::byte* buffer;  // [kStages][Bytes]
  uint64_t* full;     // [kStages]
  uint64_t* empty;    // [kStages]
  const std::byte* source;
  int64_t stride;  // between packets of a head
  int count;       // packets in all

#if __CUDA_ARCH__ >= 900
  __device__ void begin() {
    if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) {
        init_barrier(full + s, 1);
        init_barrier(empty + s, W);
      }
      fence_barriers();
    }
    __syncthreads();
  }
  __device__ void start(int i) {
    if (threadIdx.x != 0 || i >= count) return;
    const int s = i % kStages;
    if (i >= kStages) wait_barrier(empty + s, (i / kStages - 1) & 1);
    bulk_copy(buffer + s * Bytes, source + i * stride, Bytes, full + s);
  }
  // The packet i, ready to be read.
  __device__ const std::byte* get(int i) {
    wait_barrier(full + i % kStages, (i / kStages) & 1);
    return buffer + i % kStages * Bytes;
  }
  __device__ void release(int i) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) arrive(empty + i % kStages);
  }
#else
  __device__ void begin() {}
  __device__ void start(int i) {
    if (i >= count) return;
    for (int at = threadIdx.x * 16; at < Bytes; at += W * kWarp * 16) {
      const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(buffer + i % kStages * Bytes + at));
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(source + i * stride + at) : "memory");
    }
  }
  __device__ const std::byte* get(int i) {
    __syncthreads();  // all threads' copies of packet i are complete, and all are done with packet i - 1
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

  // fp32, value-first, 16-byte aligned: what pools usually are.
  __device__ static bool is_plain(const std::byte* head, DType dtype, bool kv) {
    return dtype == DType::fp32 && !kv && (reinterpret_cast<uintptr_t>(head) & 15) == 0;
  }
  __device__ void load_plain(const std::byte* head, int row0) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, j = lane % 4;
    const float* own = reinterpret_cast<const float*>(head) + (row0 + 2 * g) * K + 8 * j;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int m = 0; m < kTiles; m += 2) {
        const float4 x = __ldcs(reinterpret_cast<const float4*>(own + r * K + 32 * (m / 4) + 2 * (m % 4)));
        s[m][2 * r] = x.x, s[m][2 * r + 1] = x.y, s[m + 1][2 * r] = x.z, s[m + 1][2 * r + 1] = x.w;
      }
    }
  }
  __device__ void store_plain(std::byte* head, int row0) const {
    const int lane = threadIdx.x % kWarp, g = lane / 4, j = lane % 4;
    float* own = reinterpret_cast<float*>(head) + (row0 + 2 * g) * K + 8 * j;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int m = 0; m < kTiles; m += 2) {
        __stcs(reinterpret_cast<float4*>(own + r * K + 32 * (m / 4) + 2 * (m % 4)),
               make_float4(s[m][2 * r], s[m][2 * r + 1], s[m + 1][2 * r], s[m + 1][2 * r + 1]));
      }
    }
  }

  // Any dtype, layout and alignment. Not inlined: the loop over chunks shall stay small and keep its registers.
  __device__ __noinline__ void load(const std::byte* head, DType dtype, const Form& f, bool kv, int row0) {
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

  __device__ __noinline__ void store(std::byte* head, DType dtype, const Form& f, bool kv, int row0) const {
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

  __device__ void load_from(const std::byte* head, DType dtype, const Form& f, bool kv, int row0) {
    if (is_plain(head, dtype, kv)) {
      load_plain(head, row0);
    } else {
      ChainState any;
      any.load(head, dtype, f, kv, row0);
      *this = any;
    }
  }
  __device__ void store_to(std::byte* head, DType dtype, const Form& f, bool kv, int row0) const {
    ChainState any = *this;
    any.settle();
    if (is_plain(head, dtype, kv)) {
      any.store_plain(head, row0);
    } else {
      any.store(head, dtype, f, kv, row0);
    }
  }

  // Every lane asks itself. ptxas otherwise keeps the order of the loads and stores in the loop over chunks, where
  // mma.sync wants another, and moves most of the state every chunk.
  __device__ void settle() {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][i] = __shfl_sync(kFullMask, s[m][i], lane);
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

// A warp's values of the chunks ahead on their way through shared memory: 16 tokens x 16 rows each, in 16-byte pieces
// that lanes copy for themselves.
struct ValueRing {
  static constexpr int kBytes = kTokens * kWarpRows * 2;
  std::byte* buffer;        // [kStages][kBytes], the warp's own
  const std::byte* source;  // this lane's piece of the first chunk
  int64_t stride;           // between chunks, bytes
  int64_t left;             // tokens from the first chunk on
  bool aligned;

  __device__ void begin(const TokenView& v, std::byte* own, const std::byte* chunk, int64_t tokens, bool pieces) {
    const int lane = threadIdx.x % kWarp;
    buffer = own;
    source = chunk + (lane / 2 * v.token_stride + lane % 2 * 8) * 2;
    stride = kTokens * v.token_stride * 2;
    left = tokens;
    aligned = pieces;
  }
  // Tokens beyond the row's end are zeros.
  __device__ void start(int i) {
    const int lane = threadIdx.x % kWarp;
    const bool live = int64_t{i} * kTokens + lane / 2 < left;
    const std::byte* from = live ? source + i * stride : source;
    std::byte* const to = buffer + i % kStages * kBytes + lane * 16;
    if (aligned) {
      asm volatile(
          "cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
          "l"(from), "r"(live ? 16 : 0)
          : "memory");
    } else {
      uint4 x = {0, 0, 0, 0};
      if (live) {
#pragma unroll
        for (int e = 0; e < 4; ++e) (&x.x)[e] = load_bits16(from + 4 * e) | load_bits16(from + 4 * e + 2) << 16;
      }
      *reinterpret_cast<uint4*>(to) = x;
    }
  }
  // v[h][2r + e]: token 8h + 2j + e, row 2g + r.
  __device__ void get(int i, DType dtype, float (&v)[2][4]) const {
    const int lane = threadIdx.x % kWarp, g = lane / 4, j = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const std::byte* p = buffer + i % kStages * kBytes + (8 * h + 2 * j + e) * 32 + g * 4;
        const float2 x = unpack(load_bits32(p), dtype);
        v[h][e] = x.x, v[h][2 + e] = x.y;
      }
    }
  }
};

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Keeps x in its register: the state would otherwise wander between two sets of registers, a move an element and chunk.
__device__ inline void scale_in_place(float& x, float by) {
  asm volatile("mul.rn.f32 %0, %0, %1;" : "+f"(x) : "f"(by));
}

// S and the chunk's values in, S after the chunk and o = scale (Qhat S + P u) out; o[h][2r + e] is token 8h + 2j + e.
template <int K>
__device__ inline void advance(ChainState<K>& state, const std::byte* packet, const float (&v)[2][4],
                               float (&o)[2][4]) {
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
      scale_in_place(low[0], d.x), scale_in_place(low[1], d.y), scale_in_place(low[2], d.x),
          scale_in_place(low[3], d.y);
      scale_in_place(high[0], d.z), scale_in_place(high[1], d.w), scale_in_place(high[2], d.z);
      scale_in_place(high[3], d.w);
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
template <DType Io>
__device__ inline void store_outputs(const float (&o)[2][4], float scale, const TokenView& out, bool aligned,
                                     std::byte* chunk, int live) {
  const int g = threadIdx.x % kWarp / 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    // rows 2g of the warp, then rows 2g+1; after the transposition this lane has token g and value rows 4j to 4j+3
    const uint32_t even = transpose8(pack(__fmul_rn(o[h][0], scale), __fmul_rn(o[h][1], scale), Io));
    const uint32_t odd = transpose8(pack(__fmul_rn(o[h][2], scale), __fmul_rn(o[h][3], scale), Io));
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

template <int K, int W, DType Io>
__device__ inline void chain(const Args& a, int64_t block, std::byte* ring_buffer, uint64_t* barriers) {
  using P = Packet<K>;
  constexpr int kBlockRows = W * kWarpRows;
  const Form& f = a.form;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, j = lane % 4;
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
  std::byte* out_chunk = in.out.data + (t0 * in.out.token_stride + hv * in.out.head_stride + row0 + 4 * j) * 2;
  const int64_t out_step = kTokens * in.out.token_stride * 2;
  const int64_t left = range.count - begin * kTokens;  // tokens from here to the row's end
  const auto live_of = [&](int i) {
    const int64_t rest = left - int64_t{i} * kTokens;
    return static_cast<int>(rest < kTokens ? rest : kTokens);
  };
  ValueRing values;
  values.begin(in.v, ring_buffer + kStages * (P::kBytes + warp * ValueRing::kBytes),
               in.v.data + (t0 * in.v.token_stride + hv * in.v.head_stride + row0) * 2, left, a.aligned_values);
  for (int i = 0; i < kAhead; ++i) {
    ring.start(i);
    values.start(i);
    commit_copies();
  }

  const int64_t head_elements = int64_t{K} * f.V;
  const auto head_of = [&](const StatePool& pool, int64_t slot) {
    return slot_address(pool, pool.base, slot) + hv * head_elements * (pool.dtype == DType::fp32 ? 4 : 2);
  };
  ChainState<K> state;
  if (begin > 0) {
    state.load_carry(a.carry_in + hv * head_elements, row0);
  } else if (target.slot >= 0) {
    state.load_from(head_of(a.state, target.slot), a.state.dtype, f, a.kv, row0);
  } else {
    state.zero();
  }

  state.settle();

  const bool own_snapshots = same_pool(a.snapshots.pool, a.state);
  int64_t next_stop = kNoStop;
  const auto take_snapshots = [&](int64_t position) {
    for_snapshots_at(a.snapshots, n, position, own_snapshots, f.null_slot0, [&](int64_t slot) {
      state.store_to(head_of(a.snapshots.pool, slot), a.snapshots.pool.dtype, f, a.kv, row0);
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

  for (int i = 0; i < ring.count;) {
    // up to the next snapshot; between borders of chunks only the row's end has a state
    int64_t stop = (next_stop - 1) / kTokens + 1 - begin;
    if (stop > ring.count) stop = ring.count;
    for (; i < stop; ++i) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kAhead - 1) : "memory");
      __syncwarp();
      const std::byte* const packet = ring.get(i);
      float v[2][4], o[2][4];
      values.get(i, Io, v);
      advance<K>(state, packet, v, o);
      ring.release(i);
      ring.start(i + kAhead);
      values.start(i + kAhead);
      commit_copies();
      store_outputs<Io>(o, in.scale, in.out, a.aligned_out, out_chunk, live_of(i));
      out_chunk += out_step;
    }
    const int64_t position = (begin + i) * kTokens;
    while (next_stop <= position) {
      if (next_stop == position || next_stop == range.count) {
        take_snapshots(next_stop);
      } else {
        next_stop = next_snapshot(a.snapshots, n, next_stop);
      }
    }
  }

  if (end < chunks) {
    state.store_carry(a.carry_out + hv * head_elements, row0);
  } else if (target.dst >= 0 && (range.count > 0 || !target.in_place || target.slot < 0)) {
    // an empty row in place keeps every bit, unless it starts from zero
    state.store_to(head_of(a.dst, target.dst), a.dst.dtype, f, a.kv, row0);
  }
  if (answers && starts) raise_status(a.status, bits);
}

template <int K, int W, DType Io>
__global__ void __launch_bounds__(W* kWarp, W == 4 ? 3 : 4) chain_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(128) std::byte ring_buffer[];
  __shared__ __align__(8) uint64_t barriers[2 * kStages];
  wait_for_previous_kernel();
  chain<K, W, Io>(a, blockIdx.x, ring_buffer, barriers);
}

}  // namespace kda::cuda::chunk
