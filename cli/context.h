// Options that choose a backend and threads, the same in every command that computes.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/command.h"
#include "io/result.h"
#include "kda/kda.h"

namespace kda::cli {

struct ContextDeleter {
  void operator()(kda_context* context) const { kda_context_destroy(context); }
};
using ContextPointer = std::unique_ptr<kda_context, ContextDeleter>;

struct PlanDeleter {
  void operator()(kda_plan* plan) const { kda_plan_destroy(plan); }
};
using PlanPointer = std::unique_ptr<kda_plan, PlanDeleter>;

io::Result<ContextPointer> open_context(const kda_context_options& options);
// threads: 0 = one per core. target: "" = the best SIMD target. with_cuda: false probes no GPU.
io::Result<ContextPointer> open_context(int threads, const std::string& target, bool with_cuda);

// kda_context_describe, a JSON object.
io::Result<nlohmann::ordered_json> describe_context(const kda_context* context);

// The CUDA backend is built and finds a GPU.
bool has_gpu();

// The one-line text of a refusal: the library's message, or the catalogue's when it left none.
std::string refusal(const kda_error& error, kda_status status);
kda_error empty_error();

// "reference" | "cpu" | "cuda" and "exact" | "fast"; -1 if it is none of them.
int backend_from_name(const std::string& name);
const char* backend_name(int backend);
int numerics_from_name(const std::string& name);
const char* numerics_name(int numerics);

// --threads N, checked to be from 0 to 1024.
void add_threads_option(CLI::App& command, int& threads);

}  // namespace kda::cli
