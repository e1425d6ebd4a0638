// The arithmetic that every recurrent kernel shares. Each function rounds in one fixed order (explicit _rn operations,
// fixed reduction trees), so decode, extend, verify and commit produce the same bits whatever their tiling.
#pragma once

#include "core/record_format.h"
#include "cuda/device/access.cuh"

namespace kda::cuda {

constexpr int kWarp = 32;
constexpr unsigned kFullMask = 0xffffffffu;
constexpr int kGroup = 8;  // lanes that share one row of the state

// Geometry and formulas: what of the problem the kernels need.
struct Form {
  int K, V, H, HV, heads_ratio;  // heads_ratio = HV / H
  Gate gate;
  Beta beta;
  bool l2norm;
  bool null_slot0;
  bool single_root;
  bool fp16_decay;   // fast records: the log-decay is rounded to fp16 before its use
  bool round_steps;  // exact numerics with a bf16 pool: the state is rounded after every token
  int max_nodes;
  DType io;
  DType state;
};

// exp(x) through the hardware's base-2 exponential: about 2 ulp where the result matters (|x| up to 8), deterministic.
__device__ inline float exponential(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(__fmul_rn(x, 1.4426950408889634f)));
  return y;
}
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// exp(g) of a log-decay. A decay near 1 acts for thousands of tokens, so its error must stay near half an ulp there,
// where the hardware's exponential is off by up to two: a polynomial serves |g| < 1/4.
__device__ inline float decay_of(float g) {
  float p = __fmaf_rn(g, 1.0f / 720, 1.0f / 120);
  p = __fmaf_rn(g, p, 1.0f / 24);
  p = __fmaf_rn(g, p, 1.0f / 6);
  p = __fmaf_rn(g, p, 0.5f);
  p = __fmaf_rn(g, p, 1.0f);
  p = __fmaf_rn(g, p, 1.0f);
  return fabsf(g) < 0.25f ? p : exponential(g);
}
__device__ inline float sigmoid(float x) { return reciprocal(__fadd_rn(1.0f, exponential(-x))); }

// The log-decay of four channels.
__device__ inline float4 gate_log_decay(const Form& f, float4 a, float4 bias, bool has_A, float exp_A,
                                        float lower_bound) {
  if (f.gate == Gate::precomputed) return a;
  const float x[4] = {__fadd_rn(a.x, bias.x), __fadd_rn(a.y, bias.y), __fadd_rn(a.z, bias.z), __fadd_rn(a.w, bias.w)};
  float4 g;
  if (f.gate == Gate::softplus) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      (&g.x)[i] = __fmul_rn(-exp_A, x[i] > kSoftplusLinear ? x[i] : log1pf(exponential(x[i])));
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      (&g.x)[i] = __fmul_rn(lower_bound, sigmoid(has_A ? __fmul_rn(exp_A, x[i]) : x[i]));
    }
  }
  return g;
}

__device__ inline float step_size(Beta form, float b) {
  if (form == Beta::none) return b;
  return form == Beta::sigmoid2 ? __fmul_rn(2.0f, sigmoid(b)) : sigmoid(b);
}

// A sum in two floats. The error terms are exact and symmetric, so that lanes which add one another's sums agree.
struct DoubleFloat {
  float high = 0, low = 0;
};
__device__ inline DoubleFloat two_sum(float a, float b) {
  const float sum = __fadd_rn(a, b);
  const float of_b = __fsub_rn(sum, a);
  return {sum, __fadd_rn(__fsub_rn(a, __fsub_rn(sum, of_b)), __fsub_rn(b, of_b))};
}
__device__ inline DoubleFloat add(const DoubleFloat& a, const DoubleFloat& b) {
  const DoubleFloat sum = two_sum(a.high, b.high);
  return {sum.high, __fadd_rn(__fadd_rn(a.low, b.low), sum.low)};
}
__device__ inline DoubleFloat square(float x) {
  const float y = __fmul_rn(x, x);
  return {y, __fmaf_rn(x, x, -y)};
}

// 1/sqrt(sum of squares + epsilon) to more than fp32 (see NormFactor): one Newton step on the hardware's root.
__device__ inline NormFactor norm_factor(const DoubleFloat& squares) {
  const DoubleFloat sum = add(squares, {kL2NormEpsilon, 0.0f});
  const float root = rsqrtf(sum.high);
  const float square = __fmul_rn(root, root);
  float rest = __fmaf_rn(-sum.high, square, 1.0f);
  rest = __fmaf_rn(-sum.high, __fmaf_rn(root, root, -square), rest);
  rest = __fmaf_rn(-sum.low, square, rest);
  const float low = __fmul_rn(__fmul_rn(0.5f, root), rest);
  return {root, fabsf(rest) < 0.5f ? low : 0.0f};  // a sum that overflowed has no rest
}
__device__ inline float normalised(float x, const NormFactor& f) { return __fmaf_rn(x, f.high, __fmul_rn(x, f.low)); }

// Shared-memory image of one token and value head: k-hat, q-hat and decay (KP floats each, in state-chunk order), then
// beta and k-hat . q-hat.
template <int KP>
struct TokenVectors {
  static constexpr int kFloats = 3 * KP + 4;
  float* base;
  __device__ float* k() const { return base; }
  __device__ float* q() const { return base + KP; }
  __device__ float* decay() const { return base + 2 * KP; }
  __device__ float& beta() const { return base[3 * KP]; }
  __device__ float& kq() const { return base[3 * KP + 1]; }
};

// A lane of a group holds chunks of 4 consecutive channels; chunk c of lane j stands at 32c + 4j of the vectors in
// shared memory. Vec channels (one 16-byte access of the pool) go to one lane: Vec = 4 for fp32, 8 for bf16 pools.
template <int Vec>
__device__ constexpr int vector_position(int channel) {  // channel is a multiple of 4
  if (Vec == 4) return channel;
  return channel / 64 * 64 + (channel % 8 / 4) * 32 + channel % 64 / 8 * 4;
}
template <int Vec>
__device__ constexpr int chunk_channel(int chunk, int j) {
  if (Vec == 4) return 32 * chunk + 4 * j;
  return chunk / 2 * 64 + 8 * j + chunk % 2 * 4;
}

// Where a recurrent kernel leaves the record of a token; null pointers skip a part.
struct RecordTargets {
  std::byte* decay = nullptr;     // [K] of the value head
  std::byte* k = nullptr;         // [K] of the head
  NormFactor* k_rnorm = nullptr;  // of the head
};

// What tokens of one value head share: the gate's parameters, as one warp holds them: lane l owns channels 4l..4l+3
// (and 128 above them).
template <class Io, int KP>
struct HeadLoads {
  static constexpr int kChunks = (KP + 127) / 128;
  Raw4 bias[kChunks];
  uint32_t A;

  __device__ void load(const TokenInputs& in, const Form& f, int hv) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int channel = 128 * c + 4 * (threadIdx.x % kWarp);
      bias[c] = {};
      if (channel < (Io::kFixed ? KP : f.K) && in.dt_bias.data) {
        bias[c] = load4_raw<Io::kFixed>(in.dt_bias.data, Io::parameter(in.dt_bias.dtype), int64_t{hv} * f.K + channel);
      }
    }
    A = in.A_log.data != nullptr ? load_element_raw(in.A_log.data, Io::parameter(in.A_log.dtype), hv) : 0;
  }
};

// A token's inputs as one warp holds them before the arithmetic.
template <class Io, int KP>
struct TokenData {
  static constexpr int kChunks = (KP + 127) / 128;
  Raw4 k[kChunks], q[kChunks], a[kChunks];
  uint32_t beta;

  __device__ void load(const TokenInputs& in, const Form& f, int64_t t, int hv) {
    const int lane = threadIdx.x % kWarp;
    const int h = hv / f.heads_ratio;
    const int64_t q_offset = t * in.q.token_stride + h * in.q.head_stride;
    const int64_t k_offset = t * in.k.token_stride + h * in.k.head_stride;
    const int64_t a_offset = t * in.a.token_stride + hv * in.a.head_stride;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int channel = 128 * c + 4 * lane;
      k[c] = q[c] = a[c] = {};
      if (channel < (Io::kFixed ? KP : f.K)) {
        k[c] = load4_raw<Io::kFixed>(in.k.data, Io::token(in.k.dtype), k_offset + channel);
        q[c] = load4_raw<Io::kFixed>(in.q.data, Io::token(in.q.dtype), q_offset + channel);
        a[c] = load4_raw<Io::kFixed>(in.a.data, Io::token(in.a.dtype), a_offset + channel);
      }
    }
    beta = load_element_raw(in.b.data, Io::token(in.b.dtype), t * in.b.token_stride + hv * in.b.head_stride);
  }
};

template <class Io, int KP>
struct TokenLoads : TokenData<Io, KP>, HeadLoads<Io, KP> {
  __device__ void load(const TokenInputs& in, const Form& f, int64_t t, int hv) {
    TokenData<Io, KP>::load(in, f, t, hv);
    HeadLoads<Io, KP>::load(in, f, hv);
  }
};

// One warp turns a token's inputs into k-hat, q-hat and decay, four channels a call of out.channels(channel, k, q,
// decay), and into step size and k-hat . q-hat, out.scalars(beta, kq). Sums over K: four channels (of k's squares:
// pairs first), chunks in order, then lanes by xor 8, 16, 1, 2, 4; the squares of k in two floats.
template <class Io, int KP, class Out>
__device__ inline void prepare_token(const TokenData<Io, KP>& x, const HeadLoads<Io, KP>& head, const TokenInputs& in,
                                     const Form& f, const Out& out, const RecordTargets& record) {
  constexpr int kChunks = TokenData<Io, KP>::kChunks;
  const int lane = threadIdx.x % kWarp;
  const bool has_A = in.A_log.data != nullptr;
  const float exp_A = has_A ? exponential(to_float(head.A, Io::parameter(in.A_log.dtype))) : 1.0f;

  DoubleFloat kk;
  float qq = 0, kq = 0;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const float4 k4 = to_float4(x.k[c], Io::token(in.k.dtype)), q4 = to_float4(x.q[c], Io::token(in.q.dtype));
    const float* kc = &k4.x;
    const float* qc = &q4.x;
    const DoubleFloat chunk_kk = add(add(square(kc[0]), square(kc[1])), add(square(kc[2]), square(kc[3])));
    float chunk_qq = 0, chunk_kq = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      chunk_qq = __fmaf_rn(qc[i], qc[i], chunk_qq);
      chunk_kq = __fmaf_rn(kc[i], qc[i], chunk_kq);
    }
    kk = c == 0 ? chunk_kk : add(kk, chunk_kk);
    qq = __fadd_rn(qq, chunk_qq);
    kq = __fadd_rn(kq, chunk_kq);
  }
  constexpr int kOrder[5] = {8, 16, 1, 2, 4};
#pragma unroll
  for (int mask : kOrder) {
    kk = add(kk, {__shfl_xor_sync(kFullMask, kk.high, mask), __shfl_xor_sync(kFullMask, kk.low, mask)});
    qq = __fadd_rn(qq, __shfl_xor_sync(kFullMask, qq, mask));
    kq = __fadd_rn(kq, __shfl_xor_sync(kFullMask, kq, mask));
  }
  const NormFactor rk = f.l2norm ? norm_factor(kk) : NormFactor{1.0f, 0.0f};
  const float rq = f.l2norm ? rsqrtf(__fadd_rn(qq, kL2NormEpsilon)) : 1.0f;

#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int channel = 128 * c + 4 * lane;
    if (channel >= KP) continue;
    const float4 k4 = to_float4(x.k[c], Io::token(in.k.dtype)), q4 = to_float4(x.q[c], Io::token(in.q.dtype));
    const float4 a4 = to_float4(x.a[c], Io::token(in.a.dtype)),
                 bias4 = to_float4(head.bias[c], Io::parameter(in.dt_bias.dtype));
    const float* kc = &k4.x;
    const float* qc = &q4.x;
    const float4 gates = gate_log_decay(f, a4, bias4, has_A, exp_A, in.lower_bound);
    float4 k_hat, q_hat, decay, log_decay;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      (&k_hat.x)[i] = normalised(kc[i], rk);
      (&q_hat.x)[i] = __fmul_rn(qc[i], rq);
      float g = (&gates.x)[i];
      if (f.fp16_decay) g = __half2float(__float2half_rn(g));
      (&log_decay.x)[i] = g;
      (&decay.x)[i] = Io::kFixed || channel < f.K ? decay_of(g) : 0.0f;
    }
    out.channels(channel, k_hat, q_hat, decay);
    if (Io::kFixed || channel < f.K) {
      if (record.decay) {
        if (f.fp16_decay) {
          store4<true>(record.decay, DType::fp16, channel, log_decay);
        } else {
          store4<true>(record.decay, DType::fp32, channel, decay);
        }
      }
      if (record.k) store4<true>(record.k, Io::token(in.k.dtype), channel, k4);
    }
  }
  if (lane == 0) {
    out.scalars(step_size(f.beta, to_float(x.beta, Io::token(in.b.dtype))), __fmul_rn(normalised(kq, rk), rq));
    if (record.k_rnorm) *record.k_rnorm = rk;
  }
}

// One warp restores k-hat and decay of a recorded node: the same values that prepare_token gave verify.
// out.recorded(channel, k, decay) takes four channels.
template <int KP, class Out>
__device__ inline void restore_token(const std::byte* node, int64_t decay_offset, int64_t k_offset,
                                     int64_t rnorm_offset, const Form& f, int hv, const Out& out) {
  constexpr int kChunks = (KP + 127) / 128;
  const int lane = threadIdx.x % kWarp;
  const int h = hv / f.heads_ratio;
  const NormFactor rk = reinterpret_cast<const NormFactor*>(node + rnorm_offset)[h];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int channel = 128 * c + 4 * lane;
    if (channel >= KP) continue;
    float4 k = {0, 0, 0, 0}, decay = {0, 0, 0, 0};
    if (channel < f.K) {
      k = load4<true>(node + k_offset, f.io, int64_t{h} * f.K + channel);
      k = {normalised(k.x, rk), normalised(k.y, rk), normalised(k.z, rk), normalised(k.w, rk)};
      if (f.fp16_decay) {
        const float4 g = load4<true>(node + decay_offset, DType::fp16, int64_t{hv} * f.K + channel);
        decay = {decay_of(g.x), decay_of(g.y), decay_of(g.z), decay_of(g.w)};
      } else {
        decay = load4<true>(node + decay_offset, DType::fp32, int64_t{hv} * f.K + channel);
      }
    }
    out.recorded(channel, k, decay);
  }
}

// The same into TokenVectors.
template <int KP, int Vec>
struct TokenVectorsOut {
  TokenVectors<KP> vectors;
  __device__ void channels(int channel, float4 k, float4 q, float4 decay) const {
    recorded(channel, k, decay);
    *reinterpret_cast<float4*>(vectors.q() + vector_position<Vec>(channel)) = q;
  }
  __device__ void recorded(int channel, float4 k, float4 decay) const {
    const int position = vector_position<Vec>(channel);
    *reinterpret_cast<float4*>(vectors.k() + position) = k;
    *reinterpret_cast<float4*>(vectors.decay() + position) = decay;
  }
  __device__ void scalars(float beta, float kq) const { vectors.beta() = beta, vectors.kq() = kq; }
};
template <class Io, int KP, int Vec>
__device__ inline void finish_token(const TokenLoads<Io, KP>& x, const TokenInputs& in, const Form& f,
                                    const TokenVectors<KP>& out, const RecordTargets& record) {
  prepare_token<Io, KP>(x, x, in, f, TokenVectorsOut<KP, Vec>{out}, record);
}
template <int KP, int Vec>
__device__ inline void prepare_recorded(const std::byte* node, int64_t decay_offset, int64_t k_offset,
                                        int64_t rnorm_offset, const Form& f, int hv, const TokenVectors<KP>& out) {
  restore_token<KP>(node, decay_offset, k_offset, rnorm_offset, f, hv, TokenVectorsOut<KP, Vec>{out});
}

}  // namespace kda::cuda
