// Fast extend, the part that is parallel over chunks: one warp makes the packet of one chunk and value head. Lane 4g +
// j holds tokens g and g+8; everything stays in registers in the layout of mma.sync, and tokens meet through shuffles.
//
// A pair of tokens (t, i), i < t, first shares an aligned block of 2L tokens for exactly one L of 1, 2, 4, 8, with t in
// its upper half: G_t/G_i is then (product from the upper half's start through t) * (product after i through the lower
// half's end). Both factors are products of decays, hence at most 1, and one multiplication a level extends them.
#pragma once

#include "cuda/device/chunk.cuh"

namespace kda::cuda::chunk {

constexpr int kPrepareWarps = 4;
constexpr int kSolveStride = 20;  // floats; rows of the triangular solve lie in different banks

// exp(g) from g2 = g * log2(e).
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
  float slope;  // bounded: exp(A_log) log2(e)
  float scale;  // bounded: lower_bound log2(e); softplus: -exp(A_log)
};

// Of raw gates x, in place; x holds four channels of two tokens.
__device__ inline void to_decays(const GateConstants& c, float (&x)[2][4], float4 bias) {
  const auto each = [&](const auto& base2) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[h][i] = decay_base2(base2(x[h][i], (&bias.x)[i]));
    }
  };
  if (c.gate == Gate::bounded) {
    each([&](float raw, float b) {
      return __fmul_rn(c.scale, reciprocal(__fadd_rn(1.0f, exp2_fast(__fmul_rn(-c.slope, __fadd_rn(raw, b))))));
    });
  } else if (c.gate == Gate::softplus) {
    each([&](float raw, float b) {
      const float sum = __fadd_rn(raw, b), x2 = __fmul_rn(sum, kLog2e);
      return __fmul_rn(c.scale, sum > kSoftplusLinear ? x2 : log2_1p(exp2_fast(x2)));
    });
  } else {
    each([&](float raw, float) { return __fmul_rn(raw, kLog2e); });
  }
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

// Four channels of two tokens, in pairs of 11 bits: k and q times the product of decays from the block's start, k times
// the product behind the token to the block's end. `total` is the whole block's product: it becomes the chunk's decay,
// which acts on the state again and again, and stays in fp32.
struct Factors {
  __half2 k_pre[2][2], q_pre[2][2], k_suf[2][2];
  float total[2][4];

  // The level's products; c[h] = (A | P) of the tokens 8h .. 8h+7. `upper`: this lane's tokens are in upper blocks.
  __device__ void multiply(float (&c)[2][4], bool upper) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t k0 = bits(upper ? k_pre[h][0] : k_suf[h][0]), k1 = bits(upper ? k_pre[h][1] : k_suf[h][1]);
      mma_fp16(c[h], k0, bits(q_pre[h][0]), k1, bits(q_pre[h][1]), k0, k1);
    }
  }
  // Blocks twice as large: the other half's tokens are in the lane `lanes` away.
  __device__ void join(bool upper, int lanes) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const float x = __shfl_xor_sync(kFullMask, total[h][2 * p], lanes);
        const float y = __shfl_xor_sync(kFullMask, total[h][2 * p + 1], lanes);
        const __half2 other = __floats2half2_rn(x, y);
        k_pre[h][p] = upper ? __hmul2(k_pre[h][p], other) : k_pre[h][p];
        q_pre[h][p] = upper ? __hmul2(q_pre[h][p], other) : q_pre[h][p];
        k_suf[h][p] = upper ? k_suf[h][p] : __hmul2(k_suf[h][p], other);
        total[h][2 * p] = __fmul_rn(total[h][2 * p], x);
        total[h][2 * p + 1] = __fmul_rn(total[h][2 * p + 1], y);
      }
    }
  }
  // The two halves of the chunk, both in this lane; first their products.
  __device__ void finish(float (&c)[4]) {
    mma_fp16(c, bits(k_pre[1][0]), bits(q_pre[1][0]), bits(k_pre[1][1]), bits(q_pre[1][1]), bits(k_suf[0][0]),
             bits(k_suf[0][1]));
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const __half2 before = __floats2half2_rn(total[0][2 * p], total[0][2 * p + 1]);
      const __half2 after = __floats2half2_rn(total[1][2 * p], total[1][2 * p + 1]);
      k_pre[1][p] = __hmul2(k_pre[1][p], before), q_pre[1][p] = __hmul2(q_pre[1][p], before);
      k_suf[0][p] = __hmul2(k_suf[0][p], after);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) total[0][i] = __fmul_rn(total[0][i], total[1][i]);
  }
  __device__ static uint32_t bits(const __half2& x) { return *reinterpret_cast<const uint32_t*>(&x); }
};

__device__ inline uint32_t to_bf16(const __half2& x) {
  const float2 f = __half22float2(x);
  return pack_bf16(f.x, f.y);
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

// Plain: q, k and a are 16-byte aligned, a is of dtype Io, dt_bias fp32 and 16-byte aligned.
template <int K, DType Io, bool Plain>
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
  const bool wide_gate = !Plain && in.a.dtype == DType::fp32, aligned = Plain || a.aligned_inputs;
  const bool has_A = in.A_log.data != nullptr, has_bias = in.dt_bias.data != nullptr;
  const float exp_A = has_A ? exponential(load_element(in.A_log.data, in.A_log.dtype, hv)) : 1.0f;
  GateConstants constants{f.gate, kLog2e, -exp_A};
  if (f.gate == Gate::bounded) constants = {f.gate, __fmul_rn(exp_A, kLog2e), __fmul_rn(in.lower_bound, kLog2e)};

  float beta = 0;  // lanes 0 to 15: of token `lane`
  if (lane < live) {
    beta =
        step_size(f.beta, load_element(in.b.data, in.b.dtype, (t0 + lane) * in.b.token_stride + hv * in.b.head_stride));
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
      if (has_bias)
        bias = load4<Plain>(in.dt_bias.data, Plain ? DType::fp32 : in.dt_bias.dtype, int64_t{hv} * K + channel);
      Factors x2;
      float decay[2][4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (wide_gate) {
          const uint4 bits = half ? raw_a[h][1] : raw_a[h][0];
#pragma unroll
          for (int i = 0; i < 4; ++i) decay[h][i] = __uint_as_float((&bits.x)[i]);
        } else {
#pragma unroll
          for (int p = 0; p < 2; ++p) {
            const float2 x = unpack((&raw_a[h][0].x)[2 * half + p], Io);
            decay[h][2 * p] = x.x, decay[h][2 * p + 1] = x.y;
          }
        }
      }
      to_decays(constants, decay, bias);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          x2.total[h][i] = lives[h] ? decay[h][i] : 1.0f;  // a token that is not there changes nothing
#pragma unroll
        for (int p = 0; p < 2; ++p) {
          const float2 k2 = unpack((&raw_k[h].x)[2 * half + p], Io), q2 = unpack((&raw_q[h].x)[2 * half + p], Io);
          const __half2 own = __floats2half2_rn(x2.total[h][2 * p], x2.total[h][2 * p + 1]);
          x2.k_suf[h][p] = __floats2half2_rn(__fmul_rn(k2.x, norm_k[h]), __fmul_rn(k2.y, norm_k[h]));
          x2.k_pre[h][p] = __hmul2(x2.k_suf[h][p], own);
          x2.q_pre[h][p] = __hmul2(__floats2half2_rn(__fmul_rn(q2.x, norm_q[h]), __fmul_rn(q2.y, norm_q[h])), own);
        }
      }
      x2.multiply(level1, upper1);
      x2.join(upper1, 4);
      x2.multiply(level2, upper2);
      x2.join(upper2, 8);
      x2.multiply(level4, upper4);
      x2.join(upper4, 16);
      x2.finish(level8);

      uint32_t kend[4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int p = 0; p < 2; ++p) {
          (&khat[h].x)[2 * half + p] = to_bf16(x2.k_pre[h][p]);
          (&qhat[h].x)[2 * half + p] = to_bf16(x2.q_pre[h][p]);
          kend[2 * p + h] = transpose8(Factors::bits(x2.k_suf[h][p]));
        }
      }
      *reinterpret_cast<uint4*>(packet + P::kKend + (2 * s + half) * 512 + lane * 16) =
          make_uint4(kend[0], kend[1], kend[2], kend[3]);
      if (g == half) {
        *reinterpret_cast<float4*>(packet + P::kDecay + channel * 4) =
            make_float4(x2.total[0][0], x2.total[0][1], x2.total[0][2], x2.total[0][3]);
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

template <int K, DType Io, bool Plain>
__global__ void __launch_bounds__(kPrepareWarps* kWarp, 4) prepare_kernel(const __grid_constant__ Args a) {
  __shared__ __align__(16) float solve_rows[kPrepareWarps][kTokens * kSolveStride];
  wait_for_previous_kernel();
  const int warp = threadIdx.x / kWarp;
  prepare<K, Io, Plain>(a, int64_t{blockIdx.x} * kPrepareWarps + warp, solve_rows[warp]);
}

}  // namespace kda::cuda::chunk
