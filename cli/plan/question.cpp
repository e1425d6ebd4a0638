#include "cli/plan/question.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "cli/context.h"

namespace kda::cli::plan {
namespace {

// Draft nodes as SGLang counts them: a chain of S steps has S + 1 nodes whatever is asked; a tree as many as asked, but
// no more than its levels hold. What is more than a plan can hold is the library's to refuse.
io::Outcome read_draft(const Options& options, Question* question) {
  const int topk = std::max(1, options.topk);
  const std::string asked = fmt::format("{} were asked for", options.draft_tokens);
  if (options.steps == 0) {
    if (topk > 1 || options.draft_tokens == 0) {
      return io::Error{
          fmt::format("--speculative-eagle-topk {} without --speculative-num-steps says no draft; way out: "
                      "--speculative-num-steps N, how deep the draft goes",
                      topk)};
    }
    question->nodes = question->path = options.draft_tokens;
    question->draft = "a chain: the root and the drafted tokens";
    return io::Done{};
  }
  const std::string levels = fmt::format("{} step{}", options.steps, options.steps == 1 ? "" : "s");
  if (topk == 1) {
    question->nodes = question->path = options.steps + 1;
    question->draft = fmt::format("SGLang's rule: a chain of {} has one node a step and the root", levels);
    if (options.draft_tokens > 0 && options.draft_tokens != question->nodes) question->draft += "; " + asked;
    return io::Done{};
  }
  const int most = 1 + topk + (options.steps - 1) * topk * topk;
  const int wanted = options.draft_tokens > 0 ? options.draft_tokens : topk * options.steps + 1;
  question->nodes = std::min(wanted, most);
  question->path = std::min(question->nodes, options.steps + 1);
  question->draft =
      wanted > most ? fmt::format("SGLang's rule: {} of top-k {} make at most {} nodes; {}", levels, topk, most, asked)
      : options.draft_tokens > 0 ? "as asked"
                                 : "top-k nodes a step and the root; --speculative-num-draft-tokens sets it";
  return io::Done{};
}

}  // namespace

io::Result<Question> read_question(const Options& options, const doctor::Doctor& lookup, const doctor::Gpu& gpu) {
  doctor::Scope scope;
  lookup.add_model_facts(lookup.find_config(options.model, options.model_config), scope);
  const auto fact = [&](const char* name) { return scope.get(std::string("model.") + name); };
  // Of a file that anybody may have written: what no int32 holds becomes the largest, which the library refuses.
  const auto number = [&](const char* name, int64_t otherwise) {
    const doctor::Json value = fact(name);
    if (!value.is_number()) return otherwise;
    constexpr int32_t kLeast = std::numeric_limits<int32_t>::min(), kMost = std::numeric_limits<int32_t>::max();
    return static_cast<int64_t>(std::clamp<double>(value.get<double>(), kLeast, kMost));
  };
  const int64_t heads = number("heads", 1), value_heads = number("value_heads", heads);
  if (heads % options.tensor_parallel != 0 || value_heads % options.tensor_parallel != 0) {
    return io::Error{std::to_string(heads) + " heads do not divide over " + std::to_string(options.tensor_parallel) +
                     " ranks; way out: a --tensor-parallel that divides the heads"};
  }
  Question question;
  question.speculation = options.topk > 0 || options.steps > 0 || options.draft_tokens > 0;
  if (question.speculation) {
    if (const io::Outcome read = read_draft(options, &question); !read) return io::Error{read.error()};
  }
  for (const char* operation : {"verify", "verify_pending", "commit"}) {
    if (question.speculation || ("," + options.kernels).find("," + std::string(operation) + "=") == std::string::npos)
      continue;
    return io::Error{fmt::format("--kernels {}=... without a draft; way out: --speculative-num-steps N", operation)};
  }
  question.prompt_tokens_per_row = static_cast<double>(options.prompt_tokens) / options.rows;
  if (gpu.facts.value("vendor", "") == "nvidia" && !options.gpu.empty()) {
    question.described_gpu = 10 * gpu.facts.value("major", 0) + gpu.facts.value("minor", 0);
  }
  question.no_gpu = !options.gpu.empty() && question.described_gpu == 0;

  kda_problem& problem = question.problem;
  problem.struct_size = sizeof problem;
  problem.backend = options.backend == "auto" ? KDA_BACKEND_AUTO : backend_from_name(options.backend);
  problem.layers = static_cast<int32_t>(number("kda_layers", 1));
  if (problem.layers < 1) return io::Error{"the model's config says that no layer is a KDA layer"};
  if (!fact("kda_layers").is_number())
    question.note = "the model's config does not say how many KDA layers: one is planned";
  problem.max_rows = options.rows;
  problem.max_tokens = std::max<int64_t>(options.prompt_tokens, static_cast<int64_t>(options.rows) * question.nodes);
  problem.max_nodes = question.nodes;
  problem.heads = static_cast<int32_t>(heads / options.tensor_parallel);
  problem.value_heads = static_cast<int32_t>(value_heads / options.tensor_parallel);
  problem.key_dim = static_cast<int32_t>(number("head_dim", 128));
  problem.value_dim = static_cast<int32_t>(number("value_head_dim", problem.key_dim));
  problem.conv_width = static_cast<int32_t>(number("conv_width", 4));
  problem.state_dtype = options.state_dtype == "bf16" ? KDA_BF16 : KDA_FP32;
  problem.gate = fact("gate_lower_bound").is_number() ? KDA_GATE_BOUNDED : KDA_GATE_SOFTPLUS;
  problem.extend_numerics = problem.verify_numerics = numerics_from_name(options.numerics);
  problem.kernels = options.kernels.empty() ? nullptr : options.kernels.c_str();
  return question;
}

}  // namespace kda::cli::plan
