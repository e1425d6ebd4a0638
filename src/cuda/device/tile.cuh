// A warp's part of one head's state in registers: 4 groups of 8 lanes, each group R rows (value channels), each lane
// KP/8 key channels of them.
#pragma once

#include "cuda/device/numerics.cuh"

namespace kda::cuda {

template <class T>
constexpr DType kDTypeOf = DType::fp32;
template <>
inline constexpr DType kDTypeOf<__nv_bfloat16> = DType::bf16;

// With AnyMemory it reads and writes pools of any alignment, writes any dtype and serves any K <= KP and V; without,
// slots are 16-byte aligned and of T, K is KP, and V a multiple of the warp's rows.
template <class T, StateLayout Layout, int KP, int R, bool AnyMemory = true>
struct StateTile {
  static constexpr int E = KP / 8;
  static constexpr int kRows = 4 * R;  // rows of a warp
  static constexpr int Vec = Layout == StateLayout::vk && sizeof(T) == 2 ? 8 : 4;
  static_assert(Layout == StateLayout::vk || (R % 4 == 0 && AnyMemory));

  float s[R][E];
  int j = pinned(lane_in_group());

  __device__ static int key_dim(const Form& f) { return AnyMemory ? f.K : KP; }
  __device__ static bool live(const Form& f, int row, int channel) {
    return !AnyMemory || (row < f.V && channel < f.K);
  }

  __device__ static int lane_in_group() { return threadIdx.x % kGroup; }
  __device__ static int group() { return threadIdx.x % kWarp / kGroup; }
  // First row of this lane's group, in a warp whose rows start at warp_row.
  __device__ static int first_row(int warp_row) { return warp_row + group() * R; }

  __device__ void zero() {
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int e = 0; e < E; ++e) s[r][e] = 0;
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

  __device__ void round_bf16() {
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int e = 0; e < E; ++e) s[r][e] = round_to_bf16(s[r][e]);
  }

  // S <- S * decay, and the two dot products of each row with k-hat and q-hat; leaves the lane's k-hat in k. With Keep
  // false S stays as it is.
  template <bool Keep>
  __device__ void decay_and_dot(const TokenVectors<KP>& t, float (&p)[R], float (&w)[R], float (&k)[E]) {
#pragma unroll
    for (int r = 0; r < R; ++r) p[r] = w[r] = 0;
#pragma unroll
    for (int c = 0; c < E / 4; ++c) {
      const float4 k4 = *reinterpret_cast<const float4*>(t.k() + 32 * c + 4 * j);
      const float4 q4 = *reinterpret_cast<const float4*>(t.q() + 32 * c + 4 * j);
      const float4 a4 = *reinterpret_cast<const float4*>(t.decay() + 32 * c + 4 * j);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        k[4 * c + i] = (&k4.x)[i];
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const float x = __fmul_rn(s[r][4 * c + i], (&a4.x)[i]);
          if constexpr (Keep) s[r][4 * c + i] = x;
          p[r] = __fmaf_rn(x, (&k4.x)[i], p[r]);
          w[r] = __fmaf_rn(x, (&q4.x)[i], w[r]);
        }
      }
    }
  }

  // S <- S + u k-hat^T with the rows' u and the channels' k-hat.
  __device__ void add_outer(const float (&k)[E], const float (&u)[R]) {
#pragma unroll
    for (int e = 0; e < E; ++e) {
#pragma unroll
      for (int r = 0; r < R; ++r) s[r][e] = __fmaf_rn(u[r], k[e], s[r][e]);
    }
  }

  // S <- S * decay + u k-hat^T: a token whose u is known.
  __device__ void replay(const TokenVectors<KP>& t, const float (&u)[R]) {
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

// By value: a conditional expression on array elements would select an address and push the array out of registers.
__device__ inline float select(bool first, float a, float b) { return first ? a : b; }

// Sums x[r] of every row over the 8 lanes of the group (tree: xor 1, 2, 4) and leaves row (j % R)'s sum in lane j.
template <int R>
__device__ inline float sum_rows(const float (&x)[R], int j) {
  if constexpr (R == 8) {
    float y[4], z[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float keep = select(j & 1, x[2 * i + 1], x[2 * i]), send = select(j & 1, x[2 * i], x[2 * i + 1]);
      y[i] = __fadd_rn(keep, __shfl_xor_sync(kFullMask, send, 1));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float keep = select(j & 2, y[2 * i + 1], y[2 * i]), send = select(j & 2, y[2 * i], y[2 * i + 1]);
      z[i] = __fadd_rn(keep, __shfl_xor_sync(kFullMask, send, 2));
    }
    const float keep = select(j & 4, z[1], z[0]), send = select(j & 4, z[0], z[1]);
    return __fadd_rn(keep, __shfl_xor_sync(kFullMask, send, 4));
  } else if constexpr (R == 4) {
    float y[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float keep = select(j & 1, x[2 * i + 1], x[2 * i]), send = select(j & 1, x[2 * i], x[2 * i + 1]);
      y[i] = __fadd_rn(keep, __shfl_xor_sync(kFullMask, send, 1));
    }
    const float keep = select(j & 2, y[1], y[0]), send = select(j & 2, y[0], y[1]);
    const float z = __fadd_rn(keep, __shfl_xor_sync(kFullMask, send, 2));
    return __fadd_rn(z, __shfl_xor_sync(kFullMask, z, 4));
  } else {
    static_assert(R == 2);
    const float keep = select(j & 1, x[1], x[0]), send = select(j & 1, x[0], x[1]);
    const float y = __fadd_rn(keep, __shfl_xor_sync(kFullMask, send, 1));
    const float z = __fadd_rn(y, __shfl_xor_sync(kFullMask, y, 2));
    return __fadd_rn(z, __shfl_xor_sync(kFullMask, z, 4));
  }
}

// The reverse: every lane of the group gets every row's value from the lane that holds it.
template <int R>
__device__ inline void spread_rows(float x, float (&out)[R]) {
#pragma unroll
  for (int r = 0; r < R; ++r) out[r] = __shfl_sync(kFullMask, x, r, kGroup);
}

// The correction u and the output of one row.
struct RowResult {
  float u, out;
};
template <int KP>
__device__ inline RowResult finish_row(const TokenVectors<KP>& t, float v, float p, float w, float scale) {
  const float u = __fmul_rn(t.beta(), __fsub_rn(v, p));
  return {u, __fmul_rn(scale, __fmaf_rn(u, t.kq(), w))};
}

}  // namespace kda::cuda
