// The kernels that are built in, as data: rows expand from the lines of the .def files, prototypes in each backend's
// kernels.h.
#pragma once

#include <span>
#include <string_view>

#include "core/kernel.h"
#include "cpu/kernels.h"
#include "cuda/kernels.h"
#include "reference/kernels.h"

namespace kda {

// Every row, those of kernels that this build has no code for included (their `run` is null), in the order the planner
// considers them within one priority.
std::span<const KernelRow> kernel_registry();

// The row of that operation and name, or null.
const KernelRow* find_kernel(std::span<const KernelRow> rows, Operation operation, std::string_view name);

}  // namespace kda
