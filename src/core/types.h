// Plain vocabulary of the library. Includes nothing else of libkda but the public enums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kda/kda.h"

namespace kda {

enum class DType : uint8_t { fp32, bf16, fp16 };

constexpr int64_t size_of(DType t) { return t == DType::fp32 ? 4 : 2; }
constexpr const char* name_of(DType t) { return t == DType::fp32 ? "fp32" : t == DType::bf16 ? "bf16" : "fp16"; }

enum class Backend : uint8_t { reference = KDA_BACKEND_REFERENCE, cpu = KDA_BACKEND_CPU, cuda = KDA_BACKEND_CUDA };
enum class Gate : uint8_t {
  softplus = KDA_GATE_SOFTPLUS,
  bounded = KDA_GATE_BOUNDED,
  precomputed = KDA_GATE_PRECOMPUTED
};
enum class Beta : uint8_t { sigmoid = KDA_BETA_SIGMOID, sigmoid2 = KDA_BETA_SIGMOID2, none = KDA_BETA_NONE };
enum class StateLayout : uint8_t { vk = KDA_STATE_VK, kv = KDA_STATE_KV };
enum class ConvLayout : uint8_t { wc = KDA_CONV_WC, cw = KDA_CONV_CW };
enum class Numerics : uint8_t { exact = KDA_EXACT, fast = KDA_FAST };
enum class Operation : uint8_t {
  extend = KDA_EXTEND,
  decode = KDA_DECODE,
  verify = KDA_VERIFY,
  verify_pending = KDA_VERIFY_PENDING,
  commit = KDA_COMMIT,
  move = KDA_MOVE,
  conv_extend = KDA_CONV_EXTEND,
  conv_decode = KDA_CONV_DECODE,
  conv_verify = KDA_CONV_VERIFY,
  conv_verify_pending = KDA_CONV_VERIFY_PENDING,
  conv_commit = KDA_CONV_COMMIT,
  conv_move = KDA_CONV_MOVE,
};
constexpr int kOperationCount = KDA_OPERATION_COUNT;

// Limits of the contract, in one place.
constexpr int kMaxHeadDim = 256;    // K and V on reference and cpu; also the CUDA limit
constexpr int kMaxDraftNodes = 64;  // nodes a row
constexpr int kMinConvWidth = 2, kMaxConvWidth = 4;
constexpr float kL2NormEpsilon = 1e-6f;   // inside the root: x * rsqrt(sum x^2 + eps)
constexpr float kSoftplusLinear = 20.0f;  // softplus(x) = x above this
constexpr double kDefaultLowerBound = -5.0;
constexpr int64_t kDefaultWorkspaceLimit = int64_t{64} << 20;
constexpr int kFastSnapshotStep = 16;  // fast extend: snapshot positions are multiples of this, or the row's end

}  // namespace kda
