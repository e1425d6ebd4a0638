// The kernels of the CUDA backend, as the registry calls them; cuda_kernels.def lists them.
#pragma once

#include "core/kernel.h"

namespace kda {

#define KDA_KERNEL(name, op, ...) Status name(const Problem&, const LaunchOf<Operation::op>&, const Execution&);
#define KDA_WORKSPACE(name) int64_t name(const Problem&);
#include "cuda/cuda_kernels.def"
#undef KDA_KERNEL
#undef KDA_WORKSPACE

}  // namespace kda
