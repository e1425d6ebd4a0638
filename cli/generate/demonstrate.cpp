#include "cli/generate/demonstrate.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/generate/progress.h"
#include "cli/generate/report.h"

namespace kda::cli {

namespace {

using speculation::GenerateResult;

constexpr const char* kIndent = "  ";

// Streams text with every line indented, so that it stands out from what is said about it.
class IndentedStream {
 public:
  explicit IndentedStream(const model::Tokenizer& tokenizer) : tokens_(tokenizer) {}
  void text(std::string_view text) {
    std::string out;
    for (const char c : text) {
      if (at_line_start_ && c != '\n') out += kIndent;
      at_line_start_ = c == '\n';
      out += c;
    }
    stream_text(out);
  }
  void token(int32_t token) { text(tokens_.push(token)); }
  void finish() {
    text(tokens_.finish());
    if (!at_line_start_) text("\n");
  }

 private:
  model::TokenStream tokens_;
  bool at_line_start_ = true;
};

void print(const std::string& line) { stream_text(line + "\n"); }

std::string describe_model(const model::Config& config) {
  const auto kda = std::count(config.layer_kinds.begin(), config.layer_kinds.end(), model::LayerKind::kda);
  return fmt::format("{} layers ({} KDA, {} MLA), hidden size {}, vocabulary {}", config.num_layers, kda,
                     config.num_layers - static_cast<int>(kda), config.hidden_size, config.vocab_size);
}

std::string describe_drafting(const GenerateSettings& settings) {
  return fmt::format("{} {}: {} steps, top-k {}, up to {} nodes a round", name_of(settings.algorithm),
                     settings.shape.topk == 1 ? "chains" : "trees", settings.shape.steps, settings.shape.topk,
                     settings.shape.draft_tokens);
}

// passes: of the model, behind the one over the prompt.
std::string table_row(const std::string& name, const GenerateResult& result, int64_t passes) {
  const double tokens = static_cast<double>(result.tokens.size());
  return fmt::format("{:<18}{:>8}{:>9}{:>16.2f}{:>12.1f}", name, result.tokens.size(), passes,
                     passes > 0 ? tokens / static_cast<double>(passes) : 0.0, tokens_per_second(result));
}

size_t equal_tokens(const GenerateResult& a, const GenerateResult& b) {
  const size_t count = std::min(a.tokens.size(), b.tokens.size());
  return static_cast<size_t>(
      std::mismatch(a.tokens.begin(), a.tokens.begin() + static_cast<ptrdiff_t>(count), b.tokens.begin()).first -
      a.tokens.begin());
}

}  // namespace

int demonstrate(Runner& runner, const GenerateSettings& settings, const speculation::GenerateOptions& options,
                const std::string& prompt, const Call& call) {
  const std::vector<int32_t> tokens = runner.encode(prompt);
  IndentedStream stream(runner.tokenizer());
  speculation::GenerateOptions streamed = options;
  if (!call.json) {
    print(fmt::format("Model   {}", settings.model));
    print(fmt::format("        {}", describe_model(runner.config())));
    print(fmt::format("Drafts  {}\n", describe_drafting(settings)));
    streamed.on_token = [&](int32_t token) { stream.token(token); };
    stream.text(prompt);
  }
  const io::Result<GenerateResult> tree = runner.run(tokens, streamed, /*speculate=*/true);
  if (!call.json) stream.finish();
  if (!tree) return call.fail(tree.error());
  if (tree->finish == speculation::Finish::kInterrupted) return kInterruptedExit;
  if (!call.json) stream_text("\nThe same prompt by plain decoding, one token a pass ...");
  const io::Result<GenerateResult> plain = runner.run(tokens, options, /*speculate=*/false);
  if (!plain) return call.fail(plain.error());
  if (plain->finish == speculation::Finish::kInterrupted) return kInterruptedExit;

  const size_t equal = equal_tokens(*tree, *plain);
  const bool identical = tree->tokens == plain->tokens;
  if (call.json) {
    GenerateSettings plain_settings = settings;
    plain_settings.algorithm = Algorithm::kNone;
    print_json({{"identical", identical},
                {"speculative", report_json(tokens, *tree, runner.tokenizer().decode(tree->tokens), settings)},
                {"plain", report_json(tokens, *plain, runner.tokenizer().decode(plain->tokens), plain_settings)}});
    return identical ? kDone : kAnswerIsNo;
  }
  print(" done\n");
  print(fmt::format("{:<18}{:>8}{:>9}{:>16}{:>12}", "", "tokens", "passes", "tokens a pass", "tokens/s"));
  print(table_row(fmt::format("{} speculation", name_of(settings.algorithm)), *tree, tree->stats.verify_rounds));
  print(table_row("plain decoding", *plain, plain->stats.decode_tokens) + "\n");
  if (identical) {
    print(fmt::format("Identical: all {} tokens are the same, with {:.2f} of them a verify round.", equal,
                      tree->tokens_per_round()));
  } else {
    print(fmt::format("DIFFERENT from token {} on: speculation must not change the output.", equal));
  }
  return identical ? kDone : kAnswerIsNo;
}

}  // namespace kda::cli
