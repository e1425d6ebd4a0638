#include "cli/generate/settings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <vector>

#include "cli/command.h"
#include "cli/context.h"
#include "io/file.h"

namespace kda::cli {

namespace {

namespace fs = std::filesystem;

constexpr double kMaxTemperature = 1000;  // far beyond the point where all tokens are equally likely
constexpr size_t kMaxPromptBytes = size_t{64} << 20;
constexpr const char* kDemonstrationPrompt = "The :func:`sorted` function returns a new list";
constexpr const char* kDrafterFolder = "eagle3";  // of the built-in model

bool is_checkpoint(const fs::path& directory) {
  std::error_code ignored;
  return fs::is_regular_file(directory / "config.json", ignored);
}

// models/demo in the installation, in the source tree that this program was built in, or in the current directory.
std::vector<fs::path> built_in_candidates() {
  std::vector<fs::path> candidates;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    fs::path folder = program.parent_path();
    candidates.push_back(folder.parent_path() / "share/kda/models/demo");
    constexpr int kBuildDepth = 3;  // SOURCE/build/PRESET/cli/kda
    for (int i = 0; i <= kBuildDepth; ++i, folder = folder.parent_path()) candidates.push_back(folder / "models/demo");
  }
  candidates.emplace_back("models/demo");
  return candidates;
}

io::Result<std::string> built_in_model() {
  constexpr const char* kWayOut =
      "way out: tools/unpack-demo-model models/demo, or set KDA_MODEL_DIR, or name a checkpoint with --model DIR";
  const char* named = std::getenv("KDA_MODEL_DIR");
  if (named != nullptr && *named != '\0') {
    if (is_checkpoint(named)) return std::string(named);
    return io::Error{fmt::format("KDA_MODEL_DIR is {}, which has no config.json; {}", named, kWayOut)};
  }
  for (const fs::path& candidate : built_in_candidates()) {
    if (is_checkpoint(candidate)) return candidate.string();
  }
  return io::Error{fmt::format("the built-in model is not here (no models/demo beside the program); {}", kWayOut)};
}

std::string in_capitals(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

// The first speculative option that says how to draft, or null.
const char* tree_option(const GenerateArguments& arguments) {
  if (arguments.steps) return "--speculative-num-steps";
  if (arguments.topk) return "--speculative-eagle-topk";
  if (arguments.draft_tokens) return "--speculative-num-draft-tokens";
  return nullptr;
}

// The fastest shape of each algorithm on the built-in model (docs/performance.md, Generation).
speculation::TreeShape default_shape(Algorithm algorithm) {
  constexpr speculation::TreeShape kNgramShape{3, 1, 4};
  return algorithm == Algorithm::kNgram ? kNgramShape : speculation::TreeShape{};
}

io::Outcome settle_algorithm(const GenerateArguments& arguments, GenerateSettings& settings) {
  const bool built_in = !arguments.model;
  const std::string name = in_capitals(arguments.algorithm);
  if (name.empty()) {
    settings.algorithm = built_in ? Algorithm::kEagle3 : Algorithm::kNone;
  } else if (name == "NONE") {
    settings.algorithm = Algorithm::kNone;
  } else if (name == "EAGLE3") {
    settings.algorithm = Algorithm::kEagle3;
  } else if (name == "NGRAM") {
    settings.algorithm = Algorithm::kNgram;
  } else {
    return io::Error{fmt::format("--speculative-algorithm {} is none of NONE, EAGLE3, NGRAM", arguments.algorithm)};
  }

  const char* tree = tree_option(arguments);
  if (settings.algorithm == Algorithm::kNone) {
    const char* useless = !arguments.draft_model.empty() ? "--speculative-draft-model-path" : tree;
    if (useless != nullptr) {
      return io::Error{
          fmt::format("{} has no meaning without speculation; way out: --speculative-algorithm EAGLE3 or "
                      "NGRAM",
                      useless)};
    }
  }
  if (settings.algorithm == Algorithm::kNgram && !arguments.draft_model.empty()) {
    return io::Error{
        "--speculative-draft-model-path has no meaning with NGRAM, which looks tokens up; way out: "
        "--speculative-algorithm EAGLE3"};
  }
  if (settings.algorithm != Algorithm::kEagle3) return io::Done{};

  settings.draft_model = arguments.draft_model;
  if (settings.draft_model.empty()) {
    const fs::path beside = fs::path(settings.model) / kDrafterFolder;
    if (!is_checkpoint(beside)) {
      return io::Error{
          fmt::format("EAGLE3 needs a draft model and {} has none; way out: "
                      "--speculative-draft-model-path DIR, or --speculative-algorithm NGRAM",
                      settings.model)};
    }
    settings.draft_model = beside.string();
  } else if (!is_checkpoint(settings.draft_model)) {
    return io::Error{
        fmt::format("no draft model in {}: it has no config.json; way out: name the directory of an "
                    "EAGLE-3 checkpoint",
                    settings.draft_model)};
  }
  return io::Done{};
}

}  // namespace

const char* name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kNone:
      return "NONE";
    case Algorithm::kEagle3:
      return "EAGLE3";
    case Algorithm::kNgram:
      return "NGRAM";
  }
  return "";
}

void add_generate_options(CLI::App& command, GenerateArguments& arguments) {
  const speculation::TreeShape shape, looked_up = default_shape(Algorithm::kNgram);
  const auto both = [](int eagle3, int ngram) { return fmt::format("default {}, NGRAM {}", eagle3, ngram); };
  command.add_option("--model", arguments.model, "Checkpoint directory (default: the built-in model)")
      ->option_text("DIR");
  CLI::Option* prompt = command.add_option("--prompt", arguments.prompt, "The text to continue (default: stdin)");
  prompt->option_text("TEXT");
  command.add_option("--prompt-file", arguments.prompt_file, "A file with the text to continue")
      ->option_text("FILE")
      ->excludes(prompt);
  command.add_option("--max-new-tokens", arguments.max_new_tokens, "Most tokens to generate (default 128)")
      ->check(number_between(int64_t{0}, int64_t{1} << 32))
      ->option_text("N");
  command.add_option("--temperature", arguments.sampler.temperature, "0 (default) takes the most likely token")
      ->check(number_between(0.0, kMaxTemperature))
      ->option_text("T");
  command
      .add_option("--top-p", arguments.sampler.top_p, "Sample from the most likely tokens that reach this probability")
      ->check(number_between(0.0, 1.0))
      ->option_text("P");
  command.add_option("--top-k", arguments.sampler.top_k, "Sample from this many of the most likely tokens (0 = all)")
      ->check(number_between(0, std::numeric_limits<int>::max()))
      ->option_text("K");
  command.add_option("--seed", arguments.sampler.seed, "Of sampling; the same seed gives the same text (default 0)")
      ->check(number_between<int64_t>(0, std::numeric_limits<int64_t>::max()))
      ->option_text("SEED");
  command.add_flag("--ignore-eos", arguments.ignore_eos, "Go on after an end token");
  command
      .add_option("--speculative-algorithm", arguments.algorithm,
                  "NONE, EAGLE3 or NGRAM (default: EAGLE3 for the built-in model, NONE with --model)")
      ->option_text("NAME");
  command
      .add_option("--speculative-draft-model-path", arguments.draft_model,
                  "EAGLE-3 checkpoint directory (default: eagle3 in the model's directory)")
      ->option_text("DIR");
  command
      .add_option("--speculative-num-steps", arguments.steps,
                  fmt::format("Levels of the draft tree below its root ({})", both(shape.steps, looked_up.steps)))
      ->check(number_between(1, speculation::kMaxSteps))
      ->option_text("S");
  command
      .add_option("--speculative-eagle-topk", arguments.topk,
                  fmt::format("Children a node, and nodes expanded a level; 1 drafts a chain ({})",
                              both(shape.topk, looked_up.topk)))
      ->check(number_between(1, speculation::kMaxTopk))
      ->option_text("K");
  command
      .add_option("--speculative-num-draft-tokens", arguments.draft_tokens,
                  fmt::format("Most nodes of the tree, the root included, up to {} ({})", speculation::kMaxTreeNodes,
                              both(shape.draft_tokens, looked_up.draft_tokens)))
      ->check(number_between(2, speculation::kMaxTreeNodes))
      ->option_text("N");
  command.add_option("--backend", arguments.backend, "cpu (default) or reference")->option_text("NAME");
  command.add_option("--numerics", arguments.numerics, "exact (default) or fast")->option_text("NAME");
  add_threads_option(command, arguments.threads);
  command.add_flag("--demonstrate", arguments.demonstrate,
                   "Generate with speculation and again without, compare tokens and speed");
}

io::Result<GenerateSettings> settle(const GenerateArguments& arguments) {
  GenerateSettings settings;
  const std::string wrong = speculation::sampler_error(arguments.sampler);
  if (!wrong.empty()) return io::Error{wrong};
  if (arguments.sampler.temperature == 0 && (arguments.sampler.top_k != 0 || arguments.sampler.top_p != 1)) {
    return io::Error{
        fmt::format("{} has no meaning at --temperature 0, which takes the most likely token; way out: "
                    "--temperature T above 0",
                    arguments.sampler.top_k != 0 ? "--top-k" : "--top-p")};
  }
  const int backend = backend_from_name(arguments.backend);
  if (backend == KDA_BACKEND_CUDA) {
    return io::Error{"--backend cuda is not served here: this model runner works on the CPU; way out: --backend cpu"};
  }
  if (backend < 0) return io::Error{fmt::format("--backend {} is none of cpu, reference", arguments.backend)};
  const int numerics = numerics_from_name(arguments.numerics);
  if (numerics < 0) return io::Error{fmt::format("--numerics {} is none of exact, fast", arguments.numerics)};
  settings.backend = static_cast<kda_backend>(backend);
  settings.numerics = static_cast<kda_numerics>(numerics);

  if (!arguments.model) {
    const io::Result<std::string> model = built_in_model();
    if (!model) return io::Error{model.error()};
    settings.model = *model;
  } else if (is_checkpoint(*arguments.model)) {
    settings.model = *arguments.model;
  } else {
    return io::Error{
        fmt::format("no model in {}: it has no config.json; way out: name the directory of a Hugging Face "
                    "checkpoint",
                    *arguments.model)};
  }

  const io::Outcome algorithm = settle_algorithm(arguments, settings);
  if (!algorithm) return io::Error{algorithm.error()};
  if (settings.algorithm == Algorithm::kNone) {
    if (arguments.demonstrate) {
      return io::Error{
          "--demonstrate compares speculation with plain decoding; way out: --speculative-algorithm EAGLE3 "
          "or NGRAM"};
    }
    return settings;
  }
  settings.shape = default_shape(settings.algorithm);
  settings.shape.steps = arguments.steps.value_or(settings.shape.steps);
  settings.shape.topk = arguments.topk.value_or(settings.shape.topk);
  settings.shape.draft_tokens = arguments.draft_tokens.value_or(settings.shape.draft_tokens);
  const std::string shape = speculation::shape_error(settings.shape);
  if (!shape.empty()) return io::Error{shape};
  return settings;
}

io::Result<std::string> read_prompt(const GenerateArguments& arguments) {
  if (arguments.prompt) return *arguments.prompt;
  if (!arguments.prompt_file.empty()) return io::read_file(arguments.prompt_file, kMaxPromptBytes);
  if (arguments.demonstrate) return std::string(kDemonstrationPrompt);
  if (isatty(STDIN_FILENO) != 0) {
    return io::Error{"no prompt; way out: --prompt TEXT, --prompt-file FILE, or text on stdin"};
  }
  std::string text;
  char buffer[1 << 16];
  for (size_t count; (count = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) {
    text.append(buffer, count);
    if (text.size() > kMaxPromptBytes) return io::Error{"the prompt on stdin is longer than 64 MiB"};
  }
  if (std::ferror(stdin) != 0) return io::Error{"cannot read the prompt from stdin"};
  return text;
}

}  // namespace kda::cli
