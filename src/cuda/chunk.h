// Fast extend in chunks: one instantiation per key size, each in its own source.
#pragma once

#include "core/launch.h"
#include "cuda/device/chunk.cuh"
#include "cuda/workspace.h"

namespace kda::cuda::chunk {

Status launch_chunks_64(const Problem& p, Args& args, const Execution& execution);
Status launch_chunks_128(const Problem& p, Args& args, const Execution& execution);

}  // namespace kda::cuda::chunk
