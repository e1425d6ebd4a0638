// Fast extend in chunks: one instantiation per key size, each in its own source.
#pragma once

#include "core/launch.h"
#include "cuda/device/chunk.cuh"

namespace kda::cuda::chunk {

// What a plan's workspace holds, front to back.
struct Workspace {
  int64_t chunks;          // most of a call
  int64_t segment_chunks;  // packets held at a time
  int64_t packets_at, carry_at, carry_bytes, bytes;
};
Workspace workspace_of(const Problem& p);

Status launch_chunks_64(const Problem& p, Args& args, const Execution& execution);
Status launch_chunks_128(const Problem& p, Args& args, const Execution& execution);

}  // namespace kda::cuda::chunk
