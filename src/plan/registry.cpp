#include "plan/registry.h"

#include <iterator>

namespace kda {

#ifndef KDA_KERNEL_FUNCTION  // a test build puts faulty kernels here (tests/planted)
#define KDA_KERNEL_FUNCTION(op, kernel) &kernel
#endif

namespace {

// Kernels that this build has no code for are rows too, without a function: a plan can be made for a GPU that is only
// described.
#define KDA_WORKSPACE(name)
#define KDA_KERNEL(kernel, op, ...)                                                                    \
  KernelRow{.name = #kernel,                                                                           \
            .backend = KDA_ROW_BACKEND,                                                                \
            .operation = Operation::op,                                                                \
            .run = static_cast<KernelFunction<LaunchOf<Operation::op>>>(KDA_ROW_FUNCTION(op, kernel)), \
            __VA_ARGS__},

constexpr KernelRow kRows[] = {
#define KDA_ROW_BACKEND Backend::cuda
#if KDA_WITH_CUDA
#define KDA_ROW_FUNCTION KDA_KERNEL_FUNCTION
#else
#define KDA_ROW_FUNCTION(op, kernel) nullptr
#endif
#include "cuda/cuda_kernels.def"
#undef KDA_ROW_BACKEND
#undef KDA_ROW_FUNCTION
#define KDA_ROW_FUNCTION KDA_KERNEL_FUNCTION
#define KDA_ROW_BACKEND Backend::cpu
#include "cpu/cpu_kernels.def"
#undef KDA_ROW_BACKEND
#define KDA_ROW_BACKEND Backend::reference
#include "reference/reference_kernels.def"
#undef KDA_ROW_BACKEND
    KernelRow{}};  // an array needs a row even where no backend has kernels

}  // namespace

std::span<const KernelRow> kernel_registry() { return {kRows, std::size(kRows) - 1}; }

const KernelRow* find_kernel(std::span<const KernelRow> rows, Operation operation, std::string_view name) {
  for (const KernelRow& row : rows) {
    if (row.operation == operation && name == row.name) return &row;
  }
  return nullptr;
}

}  // namespace kda
