// A warp's part of one head's state in registers, and the arithmetic of one token on it:
//   p = S (decay * k-hat)   w = S (decay * q-hat)   u = beta (v - p)   S <- S * decay + u k-hat^T
// Two forms: StateTile keeps fp32 values and works on the CUDA cores; RoundedTile keeps a state that is rounded to bf16
// after every token, packed as it lies in the pool, and takes p and w from the tensor cores. Both have Vectors (a
// prepared token in shared memory), kLanes (lanes that share rows), R rows a lane, side by side, and the same
// functions.
#pragma once

#include "cuda/device/numerics.cuh"

namespace kda::cuda {

template <class T>
constexpr DType kDTypeOf = DType::fp32;
template <>
inline constexpr DType kDTypeOf<__nv_bfloat16> = DType::bf16;

__device__ inline float4 multiply(float4 a, float4 b) {
  return {__fmul_rn(a.x, b.x), __fmul_rn(a.y, b.y), __fmul_rn(a.z, b.z), __fmul_rn(a.w, b.w)};
}

// Brings the lines of R rows, side by side, to the L2 cache; the Lanes lanes that share them take turns.
template <int R, int RowBytes, int Lanes>
__device__ inline void prefetch_rows(const std::byte* rows, int j) {
  constexpr int kLine = 128;
#pragma unroll
  for (int i = 0; i < R * RowBytes; i += Lanes * kLine) {
    if (i + j * kLine < R * RowBytes) asm volatile("prefetch.global.L2 [%0];" ::"l"(rows + i + j * kLine));
  }
}

// R values from shared memory, side by side and aligned as such.
template <int R>
__device__ inline void load_rows(const float* from, float (&x)[R]) {
  if constexpr (R == 2) {
    const float2 y = *reinterpret_cast<const float2*>(from);
    x[0] = y.x, x[1] = y.y;
  } else {
#pragma unroll
    for (int r = 0; r < R; r += 4) {
      const float4 y = *reinterpret_cast<const float4*>(from + r);
      x[r] = y.x, x[r + 1] = y.y, x[r + 2] = y.z, x[r + 3] = y.w;
    }
  }
}

// The two scalars of a prepared token.
struct TokenScalars {
  float beta, kq;
};

// A prepared token for StateTile: decay * k-hat, decay * q-hat, decay and k-hat (KP floats each, in state-chunk order),
// then the scalars.
template <int KP, int Vec>
struct StateVectors {
  static constexpr int kFloats = 4 * KP + 4;
  float* base;
  __device__ float* ak() const { return base; }
  __device__ float* aq() const { return base + KP; }
  __device__ float* decay() const { return base + 2 * KP; }
  __device__ float* k() const { return base + 3 * KP; }
  __device__ TokenScalars scalars() const {
    const float2 x = *reinterpret_cast<const float2*>(base + 4 * KP);
    return {x.x, x.y};
  }
  __device__ void scalars(float beta, float kq) const {
    *reinterpret_cast<float2*>(base + 4 * KP) = make_float2(beta, kq);
  }
  __device__ void channels(int channel, float4 k4, float4 q4, float4 a4) const {
    const int position = vector_position<Vec>(channel);
    *reinterpret_cast<float4*>(ak() + position) = multiply(a4, k4);
    *reinterpret_cast<float4*>(aq() + position) = multiply(a4, q4);
    recorded(channel, k4, a4);
  }
  __device__ void recorded(int channel, float4 k4, float4 a4) const {
    const int position = vector_position<Vec>(channel);
    *reinterpret_cast<float4*>(decay() + position) = a4;
    *reinterpret_cast<float4*>(k() + position) = k4;
  }
};

// With AnyMemory it reads and writes pools of any alignment, writes any dtype and serves any K <= KP and V; without,
// slots are 16-byte aligned and of T, K is KP, and V a multiple of the warp's rows.
template <class T, StateLayout Layout_, int KP_, int R_, bool AnyMemory_ = true>
struct StateTile {
  static constexpr StateLayout Layout = Layout_;
  static constexpr int KP = KP_, R = R_;
  static constexpr bool AnyMemory = AnyMemory_;
  static constexpr bool kRounds = false;
  static constexpr int kLanes = 8;
  static constexpr int E = KP / kLanes;
  static constexpr int kRows = kWarp / kLanes * R;  // rows of a warp
  static constexpr int kStateRegisters = R * E;
  static constexpr int kElementBytes = sizeof(T);
  static constexpr int Vec = Layout == StateLayout::vk && sizeof(T) == 2 ? 8 : 4;
  static_assert(Layout == StateLayout::vk || (R % 4 == 0 && AnyMemory));
  using Vectors = StateVectors<KP, Vec>;

  float s[R][E];
  int j = pinned(threadIdx.x % kLanes);

  __device__ static int key_dim(const Form& f) { return AnyMemory ? f.K : KP; }
  __device__ static bool live(const Form& f, int row, int channel) {
    return !AnyMemory || (row < f.V && channel < f.K);
  }

  __device__ static int group() { return threadIdx.x % kWarp / kLanes; }
  // First row of this lane's group, in a warp whose rows start at warp_row.
  __device__ static int first_row(int warp_row) { return warp_row + group() * R; }

  __device__ void zero() {
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int e = 0; e < E; ++e) s[r][e] = 0;
  }

  // Asks for the tile's lines, so that load() finds them in the L2 cache. A hint: only for rows of whole lines.
  __device__ void prefetch(const std::byte* head, const Form& f, int v0) const {
    if constexpr (!AnyMemory) prefetch_rows<R, KP* int{sizeof(T)}, kLanes>(head + v0 * KP * int{sizeof(T)}, j);
  }

  // `head` is the state of one value head ([V, K] or [K, V]); v0 = first_row(...).
  __device__ void load(const std::byte* head, const Form& f, int v0) {
    const int K = key_dim(f);
    const T* own = reinterpret_cast<const T*>(head) + (v0 * K + Vec * j);
    const bool aligned = !AnyMemory || (reinterpret_cast<uintptr_t>(head) & 15) == 0;
    if constexpr (Layout == StateLayout::vk) {
      if (aligned) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
          for (int m = 0; m < E / Vec; ++m) {
            const int channel = 8 * Vec * m + Vec * j;
            const bool is_live = live(f, v0 + r, channel);
            if constexpr (sizeof(T) == 4) {
              float4 x = {0, 0, 0, 0};
              if (is_live) x = __ldcs(reinterpret_cast<const float4*>(own + r * K + 8 * Vec * m));
              s[r][4 * m] = x.x, s[r][4 * m + 1] = x.y, s[r][4 * m + 2] = x.z, s[r][4 * m + 3] = x.w;
            } else {
              uint4 x = {0, 0, 0, 0};
              if (is_live) x = __ldcs(reinterpret_cast<const uint4*>(own + r * K + 8 * Vec * m));
              const uint32_t* pair = &x.x;
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                s[r][8 * m + 2 * i] = __uint_as_float(pair[i] << 16);
                s[r][8 * m + 2 * i + 1] = __uint_as_float(pair[i] & 0xffff0000u);
              }
            }
          }
        }
        return;
      }
      if constexpr (AnyMemory) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
          for (int c = 0; c < E / 4; ++c) {
            const int channel = chunk_channel<Vec>(c, j);
            float4 x = {0, 0, 0, 0};
            if (v0 + r < f.V && channel < f.K) x = load4(head, kDTypeOf<T>, int64_t{v0 + r} * f.K + channel);
            s[r][4 * c] = x.x, s[r][4 * c + 1] = x.y, s[r][4 * c + 2] = x.z, s[r][4 * c + 3] = x.w;
          }
        }
      }
    } else {
#pragma unroll
      for (int e = 0; e < E; ++e) {
        const int channel = 32 * (e / 4) + 4 * j + e % 4;
#pragma unroll
        for (int r = 0; r < R; r += 4) {
          float4 x = {0, 0, 0, 0};
          if (v0 + r < f.V && channel < f.K) x = load4(head, kDTypeOf<T>, int64_t{channel} * f.V + v0 + r);
          s[r][e] = x.x, s[r + 1][e] = x.y, s[r + 2][e] = x.z, s[r + 3][e] = x.w;
        }
      }
    }
  }

  // The same from a head in shared memory that lies there as in the pool.
  __device__ void load_shared(const std::byte* head, int v0) {
    static_assert(AnyMemory || (Layout == StateLayout::vk && sizeof(T) == 4));
    const float4* own = reinterpret_cast<const float4*>(head) + (v0 * KP / 4 + j);
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int m = 0; m < E / 4; ++m) {
        const float4 x = own[r * KP / 4 + 8 * m];
        s[r][4 * m] = x.x, s[r][4 * m + 1] = x.y, s[r][4 * m + 2] = x.z, s[r][4 * m + 3] = x.w;
      }
    }
  }
  __device__ void store_shared(std::byte* head, int v0) const {
    float4* own = reinterpret_cast<float4*>(head) + (v0 * KP / 4 + j);
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int m = 0; m < E / 4; ++m)
        own[r * KP / 4 + 8 * m] = make_float4(s[r][4 * m], s[r][4 * m + 1], s[r][4 * m + 2], s[r][4 * m + 3]);
    }
  }

  // Stores this tile, rounded to `dtype`.
  __device__ void store(std::byte* head, DType dtype, const Form& f, int v0) const {
    if constexpr (Layout == StateLayout::vk) {
      if (!AnyMemory || (dtype == kDTypeOf<T> && (reinterpret_cast<uintptr_t>(head) & 15) == 0)) {
        const int K = key_dim(f);
        T* own = reinterpret_cast<T*>(head) + (v0 * K + Vec * j);
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
          for (int m = 0; m < E / Vec; ++m) {
            const int channel = 8 * Vec * m + Vec * j;
            if (!live(f, v0 + r, channel)) continue;
            if constexpr (sizeof(T) == 4) {
              __stcs(reinterpret_cast<float4*>(own + r * K + 8 * Vec * m),
                     make_float4(s[r][4 * m], s[r][4 * m + 1], s[r][4 * m + 2], s[r][4 * m + 3]));
            } else {
              const float* x = &s[r][8 * m];
              __stcs(reinterpret_cast<uint4*>(own + r * K + 8 * Vec * m),
                     make_uint4(pack(x[0], x[1], DType::bf16), pack(x[2], x[3], DType::bf16),
                                pack(x[4], x[5], DType::bf16), pack(x[6], x[7], DType::bf16)));
            }
          }
        }
        return;
      }
    }
    if constexpr (AnyMemory) store_elements(head, dtype, f, v0);
  }

  // Each lane's part of the rows' p and w.
  __device__ void dots(const Vectors& t, float (&p)[R], float (&w)[R]) const {
#pragma unroll
    for (int r = 0; r < R; ++r) p[r] = w[r] = 0;
#pragma unroll
    for (int c = 0; c < E / 4; ++c) {
      const float4 k4 = *reinterpret_cast<const float4*>(t.ak() + 32 * c + 4 * j);
      const float4 q4 = *reinterpret_cast<const float4*>(t.aq() + 32 * c + 4 * j);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
          p[r] = __fmaf_rn(s[r][4 * c + i], (&k4.x)[i], p[r]);
          w[r] = __fmaf_rn(s[r][4 * c + i], (&q4.x)[i], w[r]);
        }
      }
    }
  }

  // S <- S * decay + u k-hat^T.
  __device__ void update(const Vectors& t, const float (&u)[R]) {
#pragma unroll
    for (int c = 0; c < E / 4; ++c) {
      const float4 k4 = *reinterpret_cast<const float4*>(t.k() + 32 * c + 4 * j);
      const float4 a4 = *reinterpret_cast<const float4*>(t.decay() + 32 * c + 4 * j);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
          s[r][4 * c + i] = __fmaf_rn(u[r], (&k4.x)[i], __fmul_rn(s[r][4 * c + i], (&a4.x)[i]));
        }
      }
    }
  }

  // Stores the state after a token, rounded to `dtype`, and leaves the tile as it is.
  __device__ void store_updated(const Vectors& t, const float (&u)[R], std::byte* head, DType dtype, const Form& f,
                                int v0) const {
    StateTile next = *this;
    next.update(t, u);
    next.store(head, dtype, f, v0);
  }

  // Keeps the tile in shared memory, one 16-byte piece of every thread after another; `mine` is the thread's first.
  __device__ void save(float4* mine, int threads) const {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int c = 0; c < E / 4; ++c) {
        mine[(r * E / 4 + c) * threads] = make_float4(s[r][4 * c], s[r][4 * c + 1], s[r][4 * c + 2], s[r][4 * c + 3]);
      }
    }
  }
  __device__ void restore(const float4* mine, int threads) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int c = 0; c < E / 4; ++c) {
        const float4 x = mine[(r * E / 4 + c) * threads];
        s[r][4 * c] = x.x, s[r][4 * c + 1] = x.y, s[r][4 * c + 2] = x.z, s[r][4 * c + 3] = x.w;
      }
    }
  }

 private:
  // Any dtype, alignment and layout.
  __device__ void store_elements(std::byte* head, DType dtype, const Form& f, int v0) const {
    if constexpr (Layout == StateLayout::vk) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int c = 0; c < E / 4; ++c) {
          const int channel = chunk_channel<Vec>(c, j);
          if (v0 + r < f.V && channel < f.K) {
            store4(head, dtype, int64_t{v0 + r} * f.K + channel,
                   {s[r][4 * c], s[r][4 * c + 1], s[r][4 * c + 2], s[r][4 * c + 3]});
          }
        }
      }
    } else {
#pragma unroll
      for (int e = 0; e < E; ++e) {
        const int channel = 32 * (e / 4) + 4 * j + e % 4;
#pragma unroll
        for (int r = 0; r < R; r += 4) {
          if (v0 + r < f.V && channel < f.K) {
            store4(head, dtype, int64_t{channel} * f.V + v0 + r, {s[r][e], s[r + 1][e], s[r + 2][e], s[r + 3][e]});
          }
        }
      }
    }
  }
};

// A prepared token for RoundedTile: decay * k-hat and decay * q-hat as sums of three bf16 numbers each (24 bits, as
// many as fp32 has), the columns of one tensor core product; then decay and k-hat in fp32 and the scalars.
template <int KP>
struct RoundedVectors {
  static constexpr int kColumns = 6;
  static constexpr int kColumnBytes = 2 * KP + 64;  // the columns of two neighbours lie in different banks
  static constexpr int kColumnFloats = kColumns * kColumnBytes / 4;
  static constexpr int kFloats = kColumnFloats + 2 * KP + 4;
  float* base;
  __device__ std::byte* column(int n) const { return reinterpret_cast<std::byte*>(base) + n * kColumnBytes; }
  __device__ float* decay() const { return base + kColumnFloats; }
  __device__ float* k() const { return base + kColumnFloats + KP; }
  __device__ TokenScalars scalars() const {
    const float2 x = *reinterpret_cast<const float2*>(base + kColumnFloats + 2 * KP);
    return {x.x, x.y};
  }
  __device__ void scalars(float beta, float kq) const {
    *reinterpret_cast<float2*>(base + kColumnFloats + 2 * KP) = make_float2(beta, kq);
  }
  __device__ void channels(int channel, float4 k4, float4 q4, float4 a4) const {
    split(channel, 0, multiply(a4, k4));
    split(channel, 1, multiply(a4, q4));
    recorded(channel, k4, a4);
  }
  __device__ void recorded(int channel, float4 k4, float4 a4) const {
    *reinterpret_cast<float4*>(decay() + channel) = a4;
    *reinterpret_cast<float4*>(k() + channel) = k4;
  }

 private:
  // Columns first, first + 2 and first + 4: what bf16 keeps of x, then of the rest, then of the rest of that.
  __device__ void split(int channel, int first, float4 x) const {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      const uint2 part = {pack(x.x, x.y, DType::bf16), pack(x.z, x.w, DType::bf16)};
      *reinterpret_cast<uint2*>(column(first + 2 * i) + 2 * channel) = part;
      const float2 lo = unpack(part.x, DType::bf16), hi = unpack(part.y, DType::bf16);
      x = {__fsub_rn(x.x, lo.x), __fsub_rn(x.y, lo.y), __fsub_rn(x.z, hi.x), __fsub_rn(x.w, hi.y)};
    }
  }
};

__device__ inline void mma_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The state of a bf16 pool between tokens. Lane 4g + j holds rows R*g.. and of each 32 channels the 8 from 8j on, in
// pairs: the A operand of m16n8k16 up to the order of rows and channels. AnyMemory as above.
template <StateLayout Layout_, int KP_, int R_, bool AnyMemory_ = true>
struct RoundedTile {
  static constexpr StateLayout Layout = Layout_;
  static constexpr int KP = KP_, R = R_;
  static constexpr bool AnyMemory = AnyMemory_;
  static constexpr bool kRounds = true;
  static constexpr int kLanes = 4;
  static constexpr int kRows = kWarp / kLanes * R;
  static constexpr int kBlocks = KP / 32;
  static constexpr int kPairs = KP / 8;
  static constexpr int kStateRegisters = R * kPairs;
  static constexpr int kElementBytes = 2;
  static_assert(R == 2 || R == 4);
  static_assert(Layout == StateLayout::vk || AnyMemory);
  using Vectors = RoundedVectors<KP>;

  uint32_t s[R][kPairs];
  int j = pinned(threadIdx.x % kLanes);

  __device__ static int group() { return threadIdx.x % kWarp / kLanes; }
  __device__ static int first_row(int warp_row) { return warp_row + group() * R; }
  __device__ int channel(int block) const { return 32 * block + 8 * j; }

  __device__ void zero() {
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int e = 0; e < kPairs; ++e) s[r][e] = 0;
  }

  __device__ void prefetch(const std::byte* head, const Form& f, int v0) const {
    if constexpr (!AnyMemory) prefetch_rows<R, 2 * KP, kLanes>(head + 2 * v0 * KP, j);
  }

  __device__ void load(const std::byte* head, const Form& f, int v0) {
    const int K = AnyMemory ? f.K : KP;
    if (!AnyMemory || (Layout == StateLayout::vk && (reinterpret_cast<uintptr_t>(head) & 15) == 0)) {
      const std::byte* own = head + 2 * (v0 * K + 8 * j);
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          uint4 x = {0, 0, 0, 0};
          if (live(f, v0 + r, channel(m))) x = __ldcs(reinterpret_cast<const uint4*>(own + 2 * (r * K + 32 * m)));
          s[r][4 * m] = x.x, s[r][4 * m + 1] = x.y, s[r][4 * m + 2] = x.z, s[r][4 * m + 3] = x.w;
        }
      }
      return;
    }
    if constexpr (AnyMemory) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int e = 0; e < kPairs; ++e) {
          const int first = channel(e / 4) + e % 4 * 2;
          s[r][e] = 0;
          if (live(f, v0 + r, first)) {
            s[r][e] = load_bits16(head + 2 * at(f, v0 + r, first)) | load_bits16(head + 2 * at(f, v0 + r, first + 1))
                                                                         << 16;
          }
        }
      }
    }
  }

  __device__ void load_shared(const std::byte* head, int v0) {
    const std::byte* own = head + 2 * (v0 * KP + 8 * j);
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        const uint4 x = *reinterpret_cast<const uint4*>(own + 2 * (r * KP + 32 * m));
        s[r][4 * m] = x.x, s[r][4 * m + 1] = x.y, s[r][4 * m + 2] = x.z, s[r][4 * m + 3] = x.w;
      }
    }
  }
  __device__ void store_shared(std::byte* head, int v0) const {
    std::byte* own = head + 2 * (v0 * KP + 8 * j);
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        *reinterpret_cast<uint4*>(own + 2 * (r * KP + 32 * m)) =
            make_uint4(s[r][4 * m], s[r][4 * m + 1], s[r][4 * m + 2], s[r][4 * m + 3]);
      }
    }
  }

  __device__ void store(std::byte* head, DType dtype, const Form& f, int v0) const {
    if (plain(head, dtype)) {
      std::byte* own = head + 2 * (v0 * (AnyMemory ? f.K : KP) + 8 * j);
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          if (live(f, v0 + r, channel(m)))
            store_block(own, f, r, m, s[r][4 * m], s[r][4 * m + 1], s[r][4 * m + 2], s[r][4 * m + 3]);
        }
      }
      return;
    }
    if constexpr (AnyMemory) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int e = 0; e < kPairs; ++e) store_pair(head, dtype, f, v0 + r, e, unpack(s[r][e], DType::bf16));
      }
    }
  }

  __device__ void dots(const Vectors& t, float (&p)[R], float (&w)[R]) const {
    const int column = group();
    float even[R / 2][4] = {}, odd[R / 2][4] = {};  // two sums each, so that products wait less for one another
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      uint4 b = {0, 0, 0, 0};
      if (column < Vectors::kColumns) b = *reinterpret_cast<const uint4*>(t.column(column) + 2 * channel(m));
#pragma unroll
      for (int i = 0; i < R / 2; ++i) {
        const uint32_t* x = &s[2 * i][4 * m];
        const uint32_t* y = &s[2 * i + 1][4 * m];
        mma_bf16(even[i], x[0], y[0], x[1], y[1], b.x, b.y);
        mma_bf16(odd[i], x[2], y[2], x[3], y[3], b.z, b.w);
      }
    }
#pragma unroll
    for (int i = 0; i < R / 2; ++i) {
      p[2 * i] = __fadd_rn(even[i][0], odd[i][0]), w[2 * i] = __fadd_rn(even[i][1], odd[i][1]);
      p[2 * i + 1] = __fadd_rn(even[i][2], odd[i][2]), w[2 * i + 1] = __fadd_rn(even[i][3], odd[i][3]);
    }
  }

  __device__ void update(const Vectors& t, const float (&u)[R]) {
    for_updated(t, u, [&](int r, int m, const float2(&x)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[r][4 * m + i] = pack(x[i].x, x[i].y, DType::bf16);
    });
  }

  __device__ void store_updated(const Vectors& t, const float (&u)[R], std::byte* head, DType dtype, const Form& f,
                                int v0) const {
    const bool is_plain = plain(head, dtype);
    std::byte* own = head + 2 * (v0 * (AnyMemory ? f.K : KP) + 8 * j);
    for_updated(t, u, [&](int r, int m, const float2(&x)[4]) {
      if (is_plain) {
        if (!live(f, v0 + r, channel(m))) return;
        store_block(own, f, r, m, pack(x[0].x, x[0].y, DType::bf16), pack(x[1].x, x[1].y, DType::bf16),
                    pack(x[2].x, x[2].y, DType::bf16), pack(x[3].x, x[3].y, DType::bf16));
      } else if constexpr (AnyMemory) {
#pragma unroll
        for (int i = 0; i < 4; ++i) store_pair(head, dtype, f, v0 + r, 4 * m + i, x[i]);
      }
    });
  }

  __device__ void save(float4* mine, int threads) const {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        reinterpret_cast<uint4*>(mine)[(r * kBlocks + m) * threads] =
            make_uint4(s[r][4 * m], s[r][4 * m + 1], s[r][4 * m + 2], s[r][4 * m + 3]);
      }
    }
  }
  __device__ void restore(const float4* mine, int threads) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        const uint4 x = reinterpret_cast<const uint4*>(mine)[(r * kBlocks + m) * threads];
        s[r][4 * m] = x.x, s[r][4 * m + 1] = x.y, s[r][4 * m + 2] = x.z, s[r][4 * m + 3] = x.w;
      }
    }
  }

 private:
  __device__ static bool live(const Form& f, int row, int channel) {
    return !AnyMemory || (row < f.V && channel < f.K);
  }
  __device__ static bool plain(const std::byte* head, DType dtype) {
    return !AnyMemory ||
           (Layout == StateLayout::vk && dtype == DType::bf16 && (reinterpret_cast<uintptr_t>(head) & 15) == 0);
  }
  __device__ static int64_t at(const Form& f, int row, int channel) {
    return Layout == StateLayout::vk ? int64_t{row} * f.K + channel : int64_t{channel} * f.V + row;
  }
  __device__ static void store_block(std::byte* own, const Form& f, int r, int m, uint32_t a, uint32_t b, uint32_t c,
                                     uint32_t d) {
    __stcs(reinterpret_cast<uint4*>(own + 2 * (r * (AnyMemory ? f.K : KP) + 32 * m)), make_uint4(a, b, c, d));
  }
  __device__ void store_pair(std::byte* head, DType dtype, const Form& f, int row, int e, float2 x) const {
    const int first = channel(e / 4) + e % 4 * 2;
    if (!live(f, row, first)) return;
    store_element(head, dtype, at(f, row, first), x.x);
    store_element(head, dtype, at(f, row, first + 1), x.y);
  }

  // take(row, block, values): 8 channels of a row after the token, not rounded yet.
  template <class Take>
  __device__ void for_updated(const Vectors& t, const float (&u)[R], const Take& take) const {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      float4 k[2], a[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        k[h] = *reinterpret_cast<const float4*>(t.k() + channel(m) + 4 * h);
        a[h] = *reinterpret_cast<const float4*>(t.decay() + channel(m) + 4 * h);
      }
#pragma unroll
      for (int r = 0; r < R; ++r) {
        float2 x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 old = unpack(s[r][4 * m + i], DType::bf16);
          const float* k2 = &k[i / 2].x + i % 2 * 2;
          const float* a2 = &a[i / 2].x + i % 2 * 2;
          x[i] = {__fmaf_rn(u[r], k2[0], __fmul_rn(old.x, a2[0])), __fmaf_rn(u[r], k2[1], __fmul_rn(old.y, a2[1]))};
        }
        take(r, m, x);
      }
    }
  }
};

// By value: a conditional expression on array elements would select an address and push the array out of registers.
__device__ inline float select(bool first, float a, float b) { return first ? a : b; }

// Sums x[r] of every row over the Lanes lanes that share it (tree: xor 1, 2, 4) and leaves row (j % R)'s sum in lane j.
template <int Lanes, int R>
__device__ inline float sum_rows(const float (&x)[R], int j) {
  static_assert(R >= 2 && R <= Lanes && (R & (R - 1)) == 0);
  float y[R];
#pragma unroll
  for (int r = 0; r < R; ++r) y[r] = x[r];
#pragma unroll
  for (int mask = 1, rows = R; mask < Lanes; mask *= 2) {
    if (rows > 1) {
      rows /= 2;
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        const float keep = select(j & mask, y[2 * i + 1], y[2 * i]), send = select(j & mask, y[2 * i], y[2 * i + 1]);
        y[i] = __fadd_rn(keep, __shfl_xor_sync(kFullMask, send, mask));
      }
    } else {
      y[0] = __fadd_rn(y[0], __shfl_xor_sync(kFullMask, y[0], mask));
    }
  }
  return y[0];
}

// The reverse: every lane that shares the rows gets every row's value from the lane that holds it.
template <int Lanes, int R>
__device__ inline void spread_rows(float x, float (&out)[R]) {
#pragma unroll
  for (int r = 0; r < R; ++r) out[r] = __shfl_sync(kFullMask, x, r, Lanes);
}

// The correction u and the output of one row.
struct RowResult {
  float u, out;
};
__device__ inline RowResult finish_row(const TokenScalars& t, float v, float p, float w, float scale) {
  const float u = __fmul_rn(t.beta, __fsub_rn(v, p));
  return {u, __fmul_rn(scale, __fmaf_rn(u, t.kq, w))};
}
template <int KP>
__device__ inline RowResult finish_row(const TokenVectors<KP>& t, float v, float p, float w, float scale) {
  return finish_row(TokenScalars{t.beta(), t.kq()}, v, p, w, scale);
}

}  // namespace kda::cuda
