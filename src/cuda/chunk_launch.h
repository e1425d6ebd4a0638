// The launches of fast extend: prepare, then chain, segment by segment.
#pragma once

#include <algorithm>

#include "cuda/chunk.h"
#include "cuda/device/chunk_chain.cuh"
#include "cuda/device/chunk_prepare.cuh"
#include "cuda/host.h"

namespace kda::cuda::chunk {

template <int K, DType Io>
Status launch_prepare(int64_t blocks, const Args& args, const Execution& execution) {
  const VectorView& bias = args.tokens.dt_bias;
  const bool plain =
      args.aligned_inputs && args.tokens.a.dtype == Io &&
      (!bias.present() || (bias.dtype == DType::fp32 && reinterpret_cast<uintptr_t>(bias.data) % 16 == 0));
  return plain ? launch<prepare_kernel<K, Io, true>, true>(blocks, 1, kPrepareWarps * kWarp, 0, execution, args)
               : launch<prepare_kernel<K, Io, false>, true>(blocks, 1, kPrepareWarps * kWarp, 0, execution, args);
}

template <int K, int W>
Status launch_chain(const Problem& p, Args& args, const Execution& execution) {
  args.splits = p.value_dim / (W * kWarpRows);
  const int64_t blocks = args.rows.count * p.value_heads * args.splits;
  constexpr int64_t kShared = kStages * (Packet<K>::kBytes + W * ValueRing::kBytes);
  return p.io == DType::bf16
             ? launch<chain_kernel<K, W, DType::bf16>, true>(blocks, 1, W * kWarp, kShared, execution, args)
             : launch<chain_kernel<K, W, DType::fp16>, true>(blocks, 1, W * kWarp, kShared, execution, args);
}

// From this many units on (rows times value heads of the plan) a block takes 64 value rows and not 32: there is enough
// work for every multiprocessor.
constexpr int64_t kUnitsForWideBlocks = 128;

template <int K>
Status launch_chunks(const Problem& p, Args& args, const Execution& execution) {
  const Workspace w = workspace_of(p);
  const int64_t total = std::min(w.chunks, args.rows.tokens / kTokens + args.rows.count);
  float* const carry[2] = {reinterpret_cast<float*>(execution.workspace + w.carry_at),
                           reinterpret_cast<float*>(execution.workspace + w.carry_at + w.carry_bytes)};
  int parity = 0;
  for (args.first = 0; args.first < total; args.first = args.end, parity ^= 1) {
    args.end = std::min(total, args.first + w.segment_chunks);
    args.carry_in = carry[parity], args.carry_out = carry[parity ^ 1];
    const int64_t warps = (args.end - args.first) * p.value_heads;
    const int64_t blocks = (warps + kPrepareWarps - 1) / kPrepareWarps;
    Status s = p.io == DType::bf16 ? launch_prepare<K, DType::bf16>(blocks, args, execution)
                                   : launch_prepare<K, DType::fp16>(blocks, args, execution);
    if (s != KDA_OK) return s;
    s = p.max_rows * p.value_heads < kUnitsForWideBlocks ? launch_chain<K, 2>(p, args, execution)
                                                         : launch_chain<K, 4>(p, args, execution);
    if (s != KDA_OK) return s;
  }
  return KDA_OK;
}

}  // namespace kda::cuda::chunk
