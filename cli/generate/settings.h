// The options of kda generate, and what follows from them.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "io/result.h"
#include "kda/kda.h"
#include "model/speculation/draft_tree.h"
#include "model/speculation/sampler.h"

namespace kda::cli {

// As given on the command line.
struct GenerateArguments {
  std::optional<std::string> model;  // absent = the built-in model
  std::optional<std::string> prompt;
  std::string prompt_file;
  int64_t max_new_tokens = 128;
  speculation::SamplerOptions sampler;
  bool ignore_eos = false;
  std::string algorithm;  // empty = the model's default
  std::string draft_model;
  std::optional<int> steps, topk, draft_tokens;
  std::string backend = "cpu";
  std::string numerics = "exact";
  int threads = 0;
  bool demonstrate = false;
};

void add_generate_options(CLI::App& command, GenerateArguments& arguments);

enum class Algorithm { kNone, kEagle3, kNgram };
const char* name_of(Algorithm algorithm);  // as on the command line

// Checked, with defaults filled in.
struct GenerateSettings {
  std::string model;  // directory
  Algorithm algorithm = Algorithm::kNone;
  std::string draft_model;       // directory; EAGLE3 only
  speculation::TreeShape shape;  // unless kNone
  kda_backend backend = KDA_BACKEND_CPU;
  kda_numerics numerics = KDA_EXACT;
};

// One line of text, with the way out, when the options do not fit each other or a directory is missing.
io::Result<GenerateSettings> settle(const GenerateArguments& arguments);

// The prompt from --prompt, --prompt-file or a stdin that is no terminal.
io::Result<std::string> read_prompt(const GenerateArguments& arguments);

}  // namespace kda::cli
