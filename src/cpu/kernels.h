// The kernels of the cpu backend, as the registry calls them; cpu_kernels.def lists them.
#pragma once

#include "core/kernel.h"

namespace kda {

#define KDA_KERNEL(name, op, ...) Status name(const Problem&, const LaunchOf<Operation::op>&, const Execution&);
#define KDA_WORKSPACE(name) int64_t name(const Problem&);
#include "cpu/cpu_kernels.def"
#undef KDA_KERNEL
#undef KDA_WORKSPACE

}  // namespace kda
