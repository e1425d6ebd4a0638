// Contexts and plans as Python objects.
#pragma once

// Type casters are included here once: a file that cast without them would silently get another cast.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kda/kda.hpp"

namespace kda_python {

namespace nb = nanobind;

// Workspaces of one plan: one per call in flight, kept for the next call. Host memory only.
class WorkspaceCache {
 public:
  explicit WorkspaceCache(const kda_plan_info& info)
      : bytes_(info.workspace_bytes), alignment_(info.workspace_alignment) {}
  class Lease;
  size_t bytes() const { return bytes_; }

 private:
  friend class Lease;
  const size_t bytes_, alignment_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<std::byte[]>> idle_;
};

class WorkspaceCache::Lease {
 public:
  explicit Lease(WorkspaceCache& cache);
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  void* address() const { return address_; }

 private:
  WorkspaceCache& cache_;
  std::unique_ptr<std::byte[]> block_;
  void* address_ = nullptr;
};

// The problem that keyword arguments describe; `kernels` lives as long as the struct is used.
struct ProblemArguments {
  kda_problem problem = kda::problem();
  std::string kernels;
};
ProblemArguments read_problem(const nb::kwargs& arguments);

struct Context {
  explicit Context(const kda_context_options& options) : handle(&options) {}
  kda::Context handle;
};

struct Plan {
  Plan(std::shared_ptr<Context> context, const ProblemArguments& arguments);
  std::shared_ptr<Context> context;  // kept alive by its plans
  kda::Plan handle;
  kda_problem problem;
  WorkspaceCache workspaces;
};

void bind_plan(nb::module_& m);
void bind_calls(nb::module_& m, nb::class_<Plan>& plan);
void bind_pool(nb::module_& m);

}  // namespace kda_python
