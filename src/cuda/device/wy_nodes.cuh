// What the tuned fast verify kernel (wy_tuned.cuh) is told, where its shared memory holds what, and how a warp prepares
// a node of the draft.
#pragma once

#include "cuda/device/async_copy.cuh"
#include "cuda/device/wy.cuh"

namespace kda::cuda {

// Log-decays below this act as zero; bounded, so that sums of them lose nothing.
constexpr float kLeastLogDecay = -128.0f;
// e^(-G) must stay finite: 16 steps of the bounded gate's -5, and half a unit for rounding.
constexpr float kLeastFactoredLogDecay = -80.5f;

// Tensor cores cut the operand's significand to 11 bits. Multiplied with this before, a value is off by no more on one
// side than on the other in the mean, and those of 11 bits come back as they were. One operation, and NaN stays NaN.
constexpr float kCutBalance = 1.0f + 0.7f / 2048;
constexpr float kLog2CutBalance = 4.930159e-4f;

// A tensor of tokens, strides in bytes.
struct WyTokens {
  std::byte* data;
  int token, head;
  __device__ std::byte* at(int t, int h) const { return data + int64_t{t} * token + int64_t{h} * head; }
};

// An index tensor, strides in bytes.
struct WyIndices {
  const std::byte* data;
  int row, column;
  bool wide;
  __device__ int64_t at(int r, int c = 0) const {
    const int32_t* const p = reinterpret_cast<const int32_t*>(data + int64_t{r} * row + int64_t{c} * column);
    const int32_t low = p[0];
    int32_t high = low >> 31;
    if (wide) high = p[1];
    return int64_t{high} << 32 | static_cast<uint32_t>(low);
  }
};

// What the launch passes: the parts of SequenceArgs in the form that costs a warp the fewest instructions.
struct WyTunedArgs {
  WyTokens q, k, v, a, b, out;
  const float *A_log, *dt_bias;
  float scale, lower_bound;
  WyIndices cu_seqlens, slots, dst_slots, parents, record_rows, tips, pending_rows;  // data may be null but cu_seqlens'
  FlagView has_state;
  bool parents_by_row;
  int64_t tokens;
  StatePool state, dst;
  RecordBuffer records;
  RecordLayout layout;
  Form form;
  int node_bytes;
  int splits;
  uint32_t* status;
};

template <class T, int KP, int NT, int Rows, bool Pending>
struct WyTunedShared {
  static constexpr int kWarps = 8, kThreads = kWarps * kWarp;
  // Tiles of 16 rows that a warp takes: two read the columns once for both, one leaves room for a long path's u.
  static constexpr int kTiles = Rows == 128 && (Pending ? NT == 8 : NT == 16) ? 2 : 1;
  static constexpr int kWarpRows = kTiles * kWyRows;
  static constexpr int kRowWarps = Rows / kWarpRows;
  static constexpr int kColumns = 2 * NT;
  static_assert(NT % 8 == 0 && NT <= kWyNodes && kRowWarps <= kWarps);
  static constexpr int kStateRowBytes = KP * int{sizeof(T)};

  static constexpr int kState = 0;
  static constexpr int kColumnsAt = kState + Rows * kStateRowBytes;     // fp32 [kColumns][KP]
  static constexpr int kInverseAt = kColumnsAt + 4 * kColumns * KP;     // fp32 [NT][KP]: k e^-G
  static constexpr int kGramAt = kInverseAt + 4 * NT * KP;              // float4 [NT][NT / 2]
  static constexpr int kGatesAt = kGramAt + 16 * NT * NT / 2;           // fp32 [NT][KP]
  static constexpr int kNodesAt = kGatesAt + 4 * NT * KP;               // 32 bits [NT] each: beta, norm of k, walked
  static constexpr int kPendingGatesAt = kNodesAt + 12 * NT;            // fp16 [NT][KP]
  static constexpr int kPendingKeysAt = kPendingGatesAt + 2 * NT * KP;  // fp32 [NT][KP]: k e^(G_tip - G)
  static constexpr int kPendingDecayAt = kPendingKeysAt + 4 * NT * KP;  // fp32 [KP]: e^(G_tip)
  static constexpr int kBytes = Pending ? kPendingDecayAt + 4 * KP : kPendingGatesAt;

  // Blocks of a multiprocessor with 228 KB, by its shared memory and by the registers that a thread needs.
  static constexpr int kBlocks = 233472 / (kBytes + 1024) >= 3 && !Pending && (NT == 8 || KP == 64) ? 3 : 2;
};

__device__ inline float clamped_log_decay(float g) {  // keeps NaN
  float x;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(g), "f"(kLeastLogDecay));
  return x;
}
__device__ inline float exponential_cut(float x) {  // e^x, ready to be cut
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(__fmaf_rn(x, 1.4426950408889634f, kLog2CutBalance)));
  return y;
}

__device__ inline float4 read4(const void* p) { return *static_cast<const float4*>(p); }
__device__ inline float4 unpack4(uint2 x, DType dtype) {
  const float2 a = unpack(x.x, dtype), b = unpack(x.y, dtype);
  return {a.x, a.y, b.x, b.y};
}
__device__ inline uint2 load_pair(const std::byte* p) { return *reinterpret_cast<const uint2*>(p); }
__device__ inline float4 add4(float4 a, float4 b) {
  return {__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)};
}
__device__ inline float4 mul4(float4 a, float4 b) {
  return {__fmul_rn(a.x, b.x), __fmul_rn(a.y, b.y), __fmul_rn(a.z, b.z), __fmul_rn(a.w, b.w)};
}
__device__ inline float4 mul4(float4 a, float b) { return mul4(a, float4{b, b, b, b}); }
__device__ inline float dot4(float4 a, float4 b, float sum) {
  return __fmaf_rn(a.w, b.w, __fmaf_rn(a.z, b.z, __fmaf_rn(a.y, b.y, __fmaf_rn(a.x, b.x, sum))));
}

// A node as the warp that prepares it holds it: lane l has channels 4l to 4l + 3.
struct WyNode {
  float4 k, q, log_decay;
};

// Normalises a token, leaves its gates, step and norm in shared memory and its inputs in the record.
template <int KP>
__device__ inline WyNode prepare_node(uint2 raw_k, uint2 raw_q, uint2 raw_a, uint32_t raw_beta, float4 bias, bool has_A,
                                      float exp_A, float lower_bound, const Form& f, const RecordTargets& record,
                                      float* gates, float* beta, float* norm) {
  const int lane = threadIdx.x % kWarp;
  const bool live = KP == 128 || 4 * lane < KP;
  const float4 k = unpack4(raw_k, DType::bf16), q = unpack4(raw_q, DType::bf16);
  float rk = 1.0f, rq = 1.0f;
  if (f.l2norm) {
    float kk = dot4(k, k, 0), qq = dot4(q, q, 0);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      kk = __fadd_rn(kk, __shfl_xor_sync(kFullMask, kk, mask));
      qq = __fadd_rn(qq, __shfl_xor_sync(kFullMask, qq, mask));
    }
    rk = rsqrtf(__fadd_rn(kk, kL2NormEpsilon));
    rq = rsqrtf(__fadd_rn(qq, kL2NormEpsilon));
  }
  float4 g = gate_log_decay(f, unpack4(raw_a, DType::bf16), bias, has_A, exp_A, lower_bound);
  const uint2 half = {pack(g.x, g.y, DType::fp16), pack(g.z, g.w, DType::fp16)};
  g = unpack4(half, DType::fp16);
  g = {clamped_log_decay(g.x), clamped_log_decay(g.y), clamped_log_decay(g.z), clamped_log_decay(g.w)};
  if (live) {
    if (record.decay) *reinterpret_cast<uint2*>(record.decay + 8 * lane) = half;
    if (record.k) *reinterpret_cast<uint2*>(record.k + 8 * lane) = raw_k;
    *reinterpret_cast<float4*>(gates + 4 * lane) = g;
  }
  if (lane == 0) {
    *beta = step_size(f.beta, unpack(raw_beta, DType::bf16).x);
    *norm = rk;
    if (record.k_rnorm) *record.k_rnorm = {rk, 0.0f};
  }
  return {mul4(k, rk), mul4(q, rq), g};
}

// A draft in the registers of a warp: lane t knows node t.
struct WyDraft {
  int parent;
  unsigned path;  // bit i: node i is on the path to this node, the node included
  bool ok;        // every parent is -1 or an earlier node
};
// Lane t loads the parent of node t as given.
__device__ inline int64_t load_parent(const WyTunedArgs& a, int row, int first_token, int nodes) {
  const int lane = threadIdx.x % kWarp;
  if (a.parents.data == nullptr) return lane - 1;
  if (lane >= nodes || (a.form.single_root && lane == 0)) return -1;
  return a.parents_by_row ? a.parents.at(row, lane) : a.parents.at(first_token + lane);
}
__device__ inline WyDraft make_draft(bool chain, int64_t given, int nodes) {
  const int lane = threadIdx.x % kWarp;
  if (chain) return {lane - 1, (2u << lane) - 1, true};
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

}  // namespace kda::cuda
