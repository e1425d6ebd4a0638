// Fast extend, the part that is parallel over chunks: one warp makes the packet of one chunk and value head. Lane 4g + j
// holds tokens g and g+8; everything stays in registers in the layout of mma.sync, and tokens meet through shuffles.
//
// A pair of tokens (t, i), i < t, first shares an aligned block of 2L tokens for exactly one L of 1, 2, 4, 8, with t in
// its upper half: G_t/G_i is then (product from the upper half's start through t) * (product after i through the lower
// half's end). Both factors are products of decays, hence at most 1, and one multiplication a level extends them.
#pragma once

#include "cuda/device/chunk.cuh"

namespace kda::cuda::chunk {

constexpr int kPrepareWarps = 4;
constexpr int kSolveStride = 20;  // floats; rows of the triangular solve lie in different banks

// exp(g) for four channels; log2e is folded into the constants. g2 = g * log2(e).
__device__ inline float decay_base2(float g2) {
  float e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(g2));
  // near 1 the error of ex2 would act for thousands of tokens
  float p = __fmaf_rn(g2, 0.05550411f, 0.24022651f);
  p = __fmaf_rn(g2, p, 0.69314718f);
  p = __fmaf_rn(g2, p, 1.0f);
  return fabsf(g2) < 1.0f / 64 ? p : e;
}

constexpr float kLog2e = 1.4426950408889634f;

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2(1 + y) for y >= 0.
__device__ inline float log2_1p(float y) {
  float l;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(l) : "f"(__fadd_rn(1.0f, y)));
  float p = __fmaf_rn(y, -0.25f, 1.0f / 3);
  p = __fmaf_rn(y, p, -0.5f);
  p = __fmaf_rn(y, p, 1.0f);
  return y < 1.0f / 32 ? __fmul_rn(__fmul_rn(y, kLog2e), p) : l;
}

struct GateConstants {
  Gate gate;
  float slope;  // of x in base 2: exp(A_log) log2(e) for bounded, log2(e) for softplus
  float scale;  // bounded: lower_bound log2(e); softplus: -exp(A_log)
};

__device__ inline float4 decays(const GateConstants& c, float4 a, float4 bias) {
  float4 d;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float raw = (&a.x)[i], x = __fadd_rn(raw, (&bias.x)[i]);
    float g2;
    if (c.gate == Gate::bounded) {
      g2 = __fmul_rn(c.scale, reciprocal(__fadd_rn(1.0f, exp2_fast(__fmul_rn(-c.slope, x)))));
    } else if (c.gate == Gate::softplus) {
      g2 = __fmul_rn(c.scale, x > kSoftplusLinear ? __fmul_rn(x, kLog2e) : log2_1p(exp2_fast(__fmul_rn(x, kLog2e))));
    } else {
      g2 = __fmul_rn(raw, kLog2e);
    }
    (&d.x)[i] = decay_base2(g2);
  }
  return d;
}

// Eight consecutive 16-bit elements.
__device__ inline uint4 load8(const std::byte* p, bool aligned, bool live) {
  uint4 raw = {0, 0, 0, 0};
  if (!live) return raw;
  if (aligned) return __ldg(reinterpret_cast<const uint4*>(p));
#pragma unroll
  for (int i = 0; i < 4; ++i) (&raw.x)[i] = load_bits16(p + 4 * i) | load_bits16(p + 4 * i + 2) << 16;
  return raw;
}

// The level's products of this lane's four channels of two tokens; c[h] = (A | P) of the tokens 8h .. 8h+7.
__device__ inline void multiply_level(float (&c)[2][4], const float (&f)[2][4], const float (&k)[2][4],
                                      const float (&q)[2][4]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t k0 = pack_fp16(__fmul_rn(k[h][0], f[h][0]), __fmul_rn(k[h][1], f[h][1]));
    const uint32_t k1 = pack_fp16(__fmul_rn(k[h][2], f[h][2]), __fmul_rn(k[h][3], f[h][3]));
    const uint32_t q0 = pack_fp16(__fmul_rn(q[h][0], f[h][0]), __fmul_rn(q[h][1], f[h][1]));
    const uint32_t q1 = pack_fp16(__fmul_rn(q[h][2], f[h][2]), __fmul_rn(q[h][3], f[h][3]));
    mma_fp16(c[h], k0, q0, k1, q1, k0, k1);
  }
}

// Factors of blocks twice as large; `upper`: this lane's tokens are in the upper of the two blocks.
__device__ inline void join_blocks(float (&pre)[2][4], float (&suf)[2][4], float (&total)[2][4], bool upper, int lanes) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float other = __shfl_xor_sync(kFullMask, total[h][i], lanes);
      pre[h][i] = upper ? __fmul_rn(pre[h][i], other) : pre[h][i];
      suf[h][i] = upper ? suf[h][i] : __fmul_rn(suf[h][i], other);
      total[h][i] = __fmul_rn(total[h][i], other);
    }
  }
}

__device__ inline void factors(float (&f)[2][4], const float (&pre)[2][4], const float (&suf)[2][4], bool upper) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < 4; ++i) f[h][i] = upper ? pre[h][i] : suf[h][i];
  }
}

// T = (1 + diag(beta) A)^-1 diag(beta): lane c solves for column c; A comes in `a` as [i][t] and T leaves as [t][c].
__device__ inline void solve(float* a, float beta) {
  const int lane = threadIdx.x % kWarp, c = lane % kTokens;
  float x[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) x[t] = t == c ? 1.0f : 0.0f;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    x[i] = __fmul_rn(x[i], __shfl_sync(kFullMask, beta, i));
#pragma unroll
    for (int t4 = i / 4 * 4; t4 < kTokens; t4 += 4) {
      const float4 column = *reinterpret_cast<const float4*>(a + i * kSolveStride + t4);
#pragma unroll
      for (int t = t4; t < t4 + 4; ++t) {
        if (t > i) x[t] = __fmaf_rn(-(&column.x)[t - t4], x[i], x[t]);
      }
    }
  }
  __syncwarp();
  if (lane < kTokens) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) a[t * kSolveStride + c] = x[t];
  }
  __syncwarp();
}

template <int K, DType Io>
__device__ inline void prepare(const Args& a, int64_t warp_index, float* solve_rows) {
  using P = Packet<K>;
  const Form& f = a.form;
  const int lane = threadIdx.x % kWarp, g = lane / 4, j = lane % 4;
  const int hv = static_cast<int>(warp_index % f.HV), head = hv / f.heads_ratio;
  const int64_t number = a.first + warp_index / f.HV;
  if (number >= a.end) return;

  // a table entry that no row wrote may hold anything
  const int64_t n = a.rows.count == 1 ? 0 : a.row_of[number];
  if (n < 0 || n >= a.rows.count) return;
  uint32_t ignored = 0;
  const RowRange range = resolve_range(a.rows, n, INT64_MAX, ignored);
  const int64_t chunk = number - first_chunk(range, n);
  if (range.bad || chunk < 0 || chunk >= chunks_of(range)) return;
  const int64_t t0 = range.begin + chunk * kTokens;
  const int live = static_cast<int>(range.count - chunk * kTokens < kTokens ? range.count - chunk * kTokens : kTokens);
  const bool lives[2] = {g < live, g + 8 < live};

  const TokenInputs& in = a.tokens;
  const std::byte *q[2], *k[2], *gate[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t t = t0 + g + 8 * h;
    q[h] = in.q.data + (t * in.q.token_stride + head * in.q.head_stride + 8 * j) * 2;
    k[h] = in.k.data + (t * in.k.token_stride + head * in.k.head_stride + 8 * j) * 2;
    gate[h] = in.a.data + (t * in.a.token_stride + hv * in.a.head_stride + 8 * j) * (in.a.dtype == DType::fp32 ? 4 : 2);
  }
  const bool wide_gate = in.a.dtype == DType::fp32, aligned = a.aligned_inputs;
  const bool has_A = in.A_log.data != nullptr, has_bias = in.dt_bias.data != nullptr;
  const float exp_A = has_A ? exponential(load_element(in.A_log.data, in.A_log.dtype, hv)) : 1.0f;
  GateConstants constants{f.gate, kLog2e, -exp_A};
  if (f.gate == Gate::bounded) constants = {f.gate, __fmul_rn(exp_A, kLog2e), __fmul_rn(in.lower_bound, kLog2e)};

  float beta = 0;  // lanes 0 to 15: of token `lane`
  if (lane < live) {
    beta = step_size(f.beta, load_element(in.b.data, in.b.dtype, (t0 + lane) * in.b.token_stride + hv * in.b.head_stride));
  }

  // norms, and the diagonal of P
  float kk[2] = {}, qq[2] = {}, kq[2] = {};
  {
    uint4 raw_k[2][P::kGroups], raw_q[2][P::kGroups];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int s = 0; s < P::kGroups; ++s) {
        raw_k[h][s] = load8(k[h] + 64 * s, aligned, lives[h]);
        raw_q[h][s] = load8(q[h] + 64 * s, aligned, lives[h]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int s = 0; s < P::kGroups; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 k2 = unpack((&raw_k[h][s].x)[i], Io), q2 = unpack((&raw_q[h][s].x)[i], Io);
          kk[h] = __fmaf_rn(k2.y, k2.y, __fmaf_rn(k2.x, k2.x, kk[h]));
          qq[h] = __fmaf_rn(q2.y, q2.y, __fmaf_rn(q2.x, q2.x, qq[h]));
          kq[h] = __fmaf_rn(k2.y, q2.y, __fmaf_rn(k2.x, q2.x, kq[h]));
        }
      }
    }
  }
  float norm_k[2], norm_q[2], diagonal[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2) {
      kk[h] = __fadd_rn(kk[h], __shfl_xor_sync(kFullMask, kk[h], mask));
      qq[h] = __fadd_rn(qq[h], __shfl_xor_sync(kFullMask, qq[h], mask));
      kq[h] = __fadd_rn(kq[h], __shfl_xor_sync(kFullMask, kq[h], mask));
    }
    norm_k[h] = rsqrtf(__fadd_rn(kk[h], kL2NormEpsilon));
    norm_q[h] = rsqrtf(__fadd_rn(qq[h], kL2NormEpsilon));
    diagonal[h] = __fmul_rn(__fmul_rn(kq[h], norm_k[h]), norm_q[h]);
  }

  std::byte* const packet = a.packets + ((number - a.first) * f.HV + hv) * P::kBytes;
  float level1[2][4] = {}, level2[2][4] = {}, level4[2][4] = {}, level8[4] = {};
  const bool upper1 = (g & 1) != 0, upper2 = (g & 2) != 0, upper4 = (g & 4) != 0;

#pragma unroll 1
  for (int s = 0; s < P::kGroups; ++s) {
    uint4 raw_k[2], raw_q[2], raw_a[2][2], khat[2], qhat[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (wide_gate) {
        raw_a[h][0] = load8(gate[h] + 128 * s, aligned, lives[h]);
        raw_a[h][1] = load8(gate[h] + 128 * s + 16, aligned, lives[h]);
      } else {
        raw_a[h][0] = raw_a[h][1] = load8(gate[h] + 64 * s, aligned, lives[h]);
      }
      raw_k[h] = load8(k[h] + 64 * s, aligned, lives[h]);
      raw_q[h] = load8(q[h] + 64 * s, aligned, lives[h]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int channel = 32 * s + 8 * j + 4 * half;
      float4 bias = {0, 0, 0, 0};
      if (has_bias) bias = load4(in.dt_bias.data, in.dt_bias.dtype, int64_t{hv} * K + channel);
      float kn[2][4], qn[2][4], pre[2][4], suf[2][4], total[2][4], factor[2][4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float4 x;
        if (wide_gate) {
          const uint4 bits = half ? raw_a[h][1] : raw_a[h][0];
          x = {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z), __uint_as_float(bits.w)};
        } else {
          const float2 lo = unpack(half ? raw_a[h][0].z : raw_a[h][0].x, Io);
          const float2 hi = unpack(half ? raw_a[h][0].w : raw_a[h][0].y, Io);
          x = {lo.x, lo.y, hi.x, hi.y};
        }
        const float4 d = decays(constants, x, bias);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 k2 = unpack((&raw_k[h].x)[2 * half + i], Io), q2 = unpack((&raw_q[h].x)[2 * half + i], Io);
          kn[h][2 * i] = __fmul_rn(k2.x, norm_k[h]), kn[h][2 * i + 1] = __fmul_rn(k2.y, norm_k[h]);
          qn[h][2 * i] = __fmul_rn(q2.x, norm_q[h]), qn[h][2 * i + 1] = __fmul_rn(q2.y, norm_q[h]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          pre[h][i] = total[h][i] = lives[h] ? (&d.x)[i] : 1.0f;  // a token that is not there changes nothing
          suf[h][i] = 1.0f;
        }
      }
      factors(factor, pre, suf, upper1);
      multiply_level(level1, factor, kn, qn);
      join_blocks(pre, suf, total, upper1, 4);
      factors(factor, pre, suf, upper2);
      multiply_level(level2, factor, kn, qn);
      join_blocks(pre, suf, total, upper2, 8);
      factors(factor, pre, suf, upper4);
      multiply_level(level4, factor, kn, qn);
      join_blocks(pre, suf, total, upper4, 16);

      uint32_t kend[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float lower[2], upper_k[2], upper_q[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int x = 2 * i + e;
          lower[e] = __fmul_rn(kn[0][x], suf[0][x]);
          upper_k[e] = __fmul_rn(kn[1][x], pre[1][x]);
          upper_q[e] = __fmul_rn(qn[1][x], pre[1][x]);
        }
        kend[2 * i] = pack_fp16(lower[0], lower[1]);
        kend[2 * i + 1] = pack_fp16(upper_k[0], upper_k[1]);
        factor[0][i] = __uint_as_float(pack_fp16(upper_q[0], upper_q[1]));
      }
      mma_fp16(level8, kend[1], __float_as_uint(factor[0][0]), kend[3], __float_as_uint(factor[0][1]), kend[0], kend[2]);

      float khats[2][4], qhats[2][4], kends[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float all_before = __fmul_rn(pre[1][i], total[0][i]);
        khats[0][i] = __fmul_rn(kn[0][i], pre[0][i]), khats[1][i] = __fmul_rn(kn[1][i], all_before);
        qhats[0][i] = __fmul_rn(qn[0][i], pre[0][i]), qhats[1][i] = __fmul_rn(qn[1][i], all_before);
        kends[0][i] = __fmul_rn(kn[0][i], __fmul_rn(suf[0][i], total[1][i]));
        kends[1][i] = __fmul_rn(kn[1][i], suf[1][i]);
        total[0][i] = __fmul_rn(total[0][i], total[1][i]);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          (&khat[h].x)[2 * half + i] = pack_bf16(khats[h][2 * i], khats[h][2 * i + 1]);
          (&qhat[h].x)[2 * half + i] = pack_bf16(qhats[h][2 * i], qhats[h][2 * i + 1]);
          kend[2 * i + h] = transpose8(pack_fp16(kends[h][2 * i], kends[h][2 * i + 1]));
        }
      }
      *reinterpret_cast<uint4*>(packet + P::kKend + (2 * s + half) * 512 + lane * 16) =
          make_uint4(kend[0], kend[1], kend[2], kend[3]);
      if (g == half) {
        *reinterpret_cast<float4*>(packet + P::kDecay + channel * 4) =
            make_float4(total[0][0], total[0][1], total[0][2], total[0][3]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      *reinterpret_cast<uint4*>(packet + P::kKhat + h * P::kHalf + s * 512 + lane * 16) = khat[h];
      *reinterpret_cast<uint4*>(packet + P::kQhat + h * P::kHalf + s * 512 + lane * 16) = qhat[h];
    }
  }

  // the entries of each pair from its level; what a level computed for other pairs is dropped
  float a_tile[3][2], p_tile[3][2];  // tiles 00, 10, 11 of (tokens t, tokens i)
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int i = 2 * j + e, level = g ^ i;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float at = level >= 4 ? level4[h][e] : level >= 2 ? level2[h][e] : level1[h][e];
      const float pt = level >= 4 ? level4[h][2 + e] : level >= 2 ? level2[h][2 + e] : level1[h][2 + e];
      a_tile[2 * h][e] = i < g ? at : 0.0f;
      p_tile[2 * h][e] = i < g ? pt : i == g ? diagonal[h] : 0.0f;
    }
    a_tile[1][e] = level8[e];
    p_tile[1][e] = level8[2 + e];
    solve_rows[(2 * j + e) * kSolveStride + g] = a_tile[0][e];
    solve_rows[(2 * j + e) * kSolveStride + 8 + g] = a_tile[1][e];
    solve_rows[(8 + 2 * j + e) * kSolveStride + 8 + g] = a_tile[2][e];
  }
  __syncwarp();
  solve(solve_rows, beta);
#pragma unroll
  for (int tile = 0; tile < 3; ++tile) {
    const int row = tile == 0 ? g : 8 + g, column = (tile == 2 ? 8 : 0) + 2 * j;
    const float2 x = *reinterpret_cast<const float2*>(solve_rows + row * kSolveStride + column);
    *reinterpret_cast<uint2*>(packet + P::kT + tile * 256 + lane * 8) = make_uint2(tf32(x.x), tf32(x.y));
    *reinterpret_cast<uint2*>(packet + P::kP + tile * 256 + lane * 8) =
        make_uint2(tf32(p_tile[tile][0]), tf32(p_tile[tile][1]));
  }
}

template <int K, DType Io>
__global__ void __launch_bounds__(kPrepareWarps* kWarp, 3) prepare_kernel(const __grid_constant__ Args a) {
  __shared__ __align__(16) float solve_rows[kPrepareWarps][kTokens * kSolveStride];
  wait_for_previous_kernel();
  const int warp = threadIdx.x / kWarp;
  prepare<K, Io>(a, int64_t{blockIdx.x} * kPrepareWarps + warp, solve_rows[warp]);
}

}  // namespace kda::cuda::chunk
