// What kda plan was asked: a model on a machine, as the problem of one rank.
#pragma once

#include <optional>
#include <string>

#include "doctor/doctor.h"
#include "io/result.h"
#include "kda/kda.h"

namespace kda::cli::plan {

struct Options {
  std::string model, model_config, gpu, state_dtype = "fp32", backend = "auto", numerics = "exact", kernels;
  int tensor_parallel = 1, rows = 1, prompt_tokens = 512, threads = 0;
  int topk = 0, steps = 0, draft_tokens = 0;
  std::optional<double> memory_gib;
};

struct Question {
  kda_problem problem = {};
  int32_t described_gpu = 0;  // compute capability times 10 of a named GPU; 0 = the machine's own
  bool no_gpu = false;        // a machine without one that CUDA kernels run on
  bool speculation = false;
  int nodes = 1;      // of a draft, the root included
  int path = 1;       // nodes of the longest accepted path
  std::string draft;  // where `nodes` comes from; "" without speculation
  std::string note;   // what the model's config leaves open; "" = nothing
  double prompt_tokens_per_row = 0;
};

// Throws doctor::UsageError for models and GPUs that are not known; other wrong options come back as an error.
io::Result<Question> read_question(const Options& options, const doctor::Doctor& lookup, const doctor::Gpu& gpu);

}  // namespace kda::cli::plan
