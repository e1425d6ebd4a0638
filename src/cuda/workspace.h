// What plans of the CUDA backend need as workspace. Arithmetic alone: builds without the backend have it too, so that a
// plan for a GPU that is only described says its bytes.
#pragma once

#include "core/problem.h"

namespace kda {

// Bytes of workspace that the host lists of any call within the plan's limits need.
int64_t host_list_bytes(const Problem& problem);

namespace cuda {

constexpr int64_t kHostListAlignment = 16;
constexpr int64_t align_host_list(int64_t bytes) {
  return (bytes + kHostListAlignment - 1) / kHostListAlignment * kHostListAlignment;
}

constexpr int kMoveSharedBytes = 48 * 1024;  // of a block of move: pieces of all slots that a call names

}  // namespace cuda

namespace cuda::chunk {  // fast extend in chunks

constexpr int kTokens = kFastSnapshotStep;  // of a chunk: snapshots then fall on borders of chunks
static_assert(kTokens == 16, "two tiles of eight tokens, as mma.sync has them");

// A packet holds the operands as lanes of mma.sync want them, so that a lane reads 16 consecutive bytes. Lane 4g + j of
// a warp; channels of a lane: the eight from 32s + 8j on, for each group s of 32 channels.
template <int K>
struct Packet {
  static constexpr int kGroups = K / 32;
  static constexpr int kHalf = kGroups * 512;      // 8 tokens, 16 bits each
  static constexpr int kKhat = 0;                  // bf16 [2 tiles of tokens][group][lane] 8 channels of token g
  static constexpr int kQhat = kKhat + 2 * kHalf;  // likewise
  static constexpr int kKend = kQhat + 2 * kHalf;  // fp16 [K/16][lane] (2 columns of channels) x (2 tiles of tokens)
  static constexpr int kT = kKend + 2 * kHalf;     // tf32 [3][lane] rows g, columns 2j and 2j+1; tiles 00, 10, 11
  static constexpr int kP = kT + 3 * 32 * 8;       // likewise
  static constexpr int kDecay = kP + 3 * 32 * 8;   // fp32 [K]
  static constexpr int kBytes = kDecay + K * 4;
  static_assert(kBytes % 128 == 0);
};

// What a plan's workspace holds, front to back.
struct Workspace {
  int64_t chunks;          // most of a call
  int64_t segment_chunks;  // packets held at a time
  int64_t packets_at, carry_at, carry_bytes, bytes;
};
Workspace workspace_of(const Problem& p);

}  // namespace cuda::chunk
}  // namespace kda
