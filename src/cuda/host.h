// Host side shared by the launchers: geometry for the kernels, launch configuration, errors.
#pragma once

#include <cuda_runtime.h>

#include "core/launch.h"
#include "cuda/device/numerics.cuh"
#include "cuda/kernel_list.h"
#include "cuda/probe.h"

namespace kda::cuda {

constexpr int64_t kMaxGridX = (int64_t{1} << 31) - 1;
constexpr int64_t kPoolAlignment = 16;

// steps_round: the operation's state is rounded to the pool's dtype after every token.
inline Form make_form(const Problem& p, bool half_decay, bool steps_round) {
  return {.K = p.key_dim,
          .V = p.value_dim,
          .H = p.heads,
          .HV = p.value_heads,
          .heads_ratio = p.value_heads_per_head(),
          .gate = p.gate,
          .beta = p.beta,
          .l2norm = p.qk_l2norm,
          .null_slot0 = p.null_slot0,
          .single_root = p.single_root,
          .fp16_decay = half_decay,
          .round_steps = steps_round && p.state == DType::bf16,
          .max_nodes = p.max_nodes,
          .io = p.io,
          .state = p.state};
}

// Slots of this pool can be read and written in 16-byte pieces.
inline bool is_aligned(const StatePool& pool) {
  const int64_t stride = pool.slot_stride * size_of(pool.dtype);
  return pool.layers.table == nullptr && reinterpret_cast<uintptr_t>(pool.base) % kPoolAlignment == 0 &&
         stride % kPoolAlignment == 0 && pool.layers.stride % kPoolAlignment == 0;
}

// Four elements of every head of this bf16 tensor are one aligned access.
inline bool is_aligned_bf16(const TokenView& v) {
  return v.dtype == DType::bf16 && reinterpret_cast<uintptr_t>(v.data) % 8 == 0 && v.token_stride % 4 == 0 &&
         v.head_stride % 4 == 0;
}

// FixedIo<bf16> can read these tensors (see device/access.cuh); block_rows: value rows of a block.
inline bool is_fixed_bf16(const Problem& p, const TokenInputs& t, int64_t block_rows) {
  const auto aligned = [](const TokenView& v) {
    return reinterpret_cast<uintptr_t>(v.data) % 8 == 0 && v.token_stride % 4 == 0 && v.head_stride % 4 == 0;
  };
  const auto parameter = [](const VectorView& v) {
    return !v.present() || (v.dtype == DType::fp32 && reinterpret_cast<uintptr_t>(v.data) % 16 == 0);
  };
  return p.io == DType::bf16 && p.gate_input == DType::bf16 && p.beta_input == DType::bf16 &&
         (p.key_dim == 64 || p.key_dim == 128) && p.value_dim % block_rows == 0 && aligned(t.q) && aligned(t.k) &&
         aligned(t.v) && aligned(t.a) && parameter(t.A_log) && parameter(t.dt_bias);
}

inline int padded_key_dim(int K) { return K <= 64 ? 64 : K <= 128 ? 128 : 256; }

// Launches `Kernel`, which the plan has loaded (cuda_load_kernels). Early: the launch may begin before the kernel ahead
// of it ends, because this one calls wait_for_previous_kernel() first.
template <auto Kernel, bool Early = false, class Args>
Status launch(int64_t blocks, int64_t layers, int threads, int64_t shared_bytes, const Execution& execution,
              const Args& args) {
  if (blocks == 0 || layers == 0) return KDA_OK;
  if (blocks > kMaxGridX || layers > 65535) return KDA_E_PLAN_LIMIT;
  list_kernel<Kernel>();
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(layers));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = static_cast<cudaStream_t>(execution.stream);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = Early && cuda_launches_early() ? 1 : 0;
  return cudaLaunchKernelEx(&config, Kernel, args) == cudaSuccess ? KDA_OK : KDA_E_CUDA_DEVICE;
}

}  // namespace kda::cuda
