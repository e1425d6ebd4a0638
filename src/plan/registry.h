// The kernels that are built in, as data: prototypes and rows expand from the same .def lines.
#pragma once

#include <span>
#include <string_view>

#include "core/kernel.h"

namespace kda {

#define KDA_KERNEL(name, op, ...) Status name(const Problem&, const LaunchOf<Operation::op>&, const Execution&);
#define KDA_WORKSPACE(name) int64_t name(const Problem&);
#include "cpu/cpu_kernels.def"
#include "reference/reference_kernels.def"
#if KDA_WITH_CUDA
#include "cuda/cuda_kernels.def"
#endif
#undef KDA_KERNEL
#undef KDA_WORKSPACE

// Every row, in the order the planner considers them within one priority.
std::span<const KernelRow> kernel_registry();

// The row of that operation and name, or null.
const KernelRow* find_kernel(std::span<const KernelRow> rows, Operation operation, std::string_view name);

}  // namespace kda
