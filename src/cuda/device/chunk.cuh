// Fast extend in chunks of 16 tokens: what its two kernels share. Per chunk and value head, with G the decays' products
// from the chunk's start, S the state before the chunk and u the corrections,
//   u = T (v - Khat S)             Khat_t = k_t G_t,   T = (1 + diag(beta) A)^-1 diag(beta),   A_ti = <k_t, k_i
//   G_t/G_i> o = scale (Qhat S + P u)       Qhat_t = q_t G_t,   P_ti = <q_t, k_i G_t/G_i> S = G_16 S + Kend^T u Kend_t
//   = k_t G_16/G_t
// The preparing kernel makes Khat, Qhat, Kend, T, P and G_16 of every chunk (chunk_prepare.cuh): a packet. The chain
// walks the packets of a row with the state in registers (chunk_chain.cuh). Ratios G_t/G_i are products of decays,
// never divisions, so any decay is safe and no later token is ever looked at.
#pragma once

#include "core/types.h"
#include "cuda/device/numerics.cuh"
#include "cuda/device/rows.cuh"
#include "cuda/workspace.h"

namespace kda::cuda::chunk {

struct Args {
  TokenInputs tokens;
  Rows rows;
  StatePool state, dst;
  StateSnapshots snapshots;
  Form form;
  bool kv;              // layout of the pools
  bool aligned_inputs;  // q, k and a can be read in 16-byte pieces
  bool aligned_values;  // v can be read in 16-byte pieces
  bool aligned_out;     // out can be written in 8-byte pieces
  int splits;           // blocks of the chain that share a head's value rows
  int32_t* row_of;      // [chunks of the call] which row a chunk belongs to
  std::byte* packets;   // of this segment's chunks
  float* carry_in;      // states between segments, as lanes hold them
  float* carry_out;
  int64_t first, end;  // this segment's chunks
  uint32_t* status;
};

// Chunks are numbered over the packed tokens: every row has its own numbers, and one at least.
__device__ inline int64_t first_chunk(const RowRange& range, int64_t n) { return range.begin / kTokens + n; }
__device__ inline int64_t chunks_of(const RowRange& range) { return (range.count + kTokens - 1) / kTokens; }

// Rounded to the nearest once the tensor cores drop the low 13 bits. Values here are finite.
__device__ inline uint32_t tf32(float x) { return __float_as_uint(x) + 0x1000u; }

__device__ inline void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void mma_fp16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Transposes 8 x 8 elements of 16 bits: lane 4g + j gives row g, columns 2j and 2j+1, and gets column g, rows 2j and
// 2j+1.
__device__ inline uint32_t transpose8(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

__device__ inline uint32_t pack_bf16(float lo, float hi) { return pack(lo, hi, DType::bf16); }
__device__ inline uint32_t pack_fp16(float lo, float hi) { return pack(lo, hi, DType::fp16); }

}  // namespace kda::cuda::chunk
