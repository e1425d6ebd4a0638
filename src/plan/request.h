// A caller's problem, read and checked: the geometry for the kernels, and the choices for the planner.
#pragma once

#include <array>
#include <span>

#include "core/kernel.h"
#include "core/problem.h"

namespace kda {

struct Request {
  Problem problem;
  int backend = KDA_BACKEND_AUTO;  // or the forced kda_backend
  std::array<const KernelRow*, kOperationCount> forced{};
};

// Fills in every default and checks every limit that holds whatever the kernels. Never allocates.
Status read_problem(const kda_problem* caller, std::span<const KernelRow> rows, Request* request,
                    const ErrorSink& sink);

}  // namespace kda
