// kda generate: continues a prompt with a KDA model, by plain decoding or with chain and tree speculation.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/generate/demonstrate.h"
#include "cli/generate/progress.h"
#include "cli/generate/report.h"
#include "cli/generate/runner.h"
#include "cli/generate/settings.h"

namespace kda::cli {
namespace {

int generate_text(Runner& runner, const GenerateSettings& settings, const speculation::GenerateOptions& options,
                  const std::string& prompt, const Call& call) {
  const std::vector<int32_t> tokens = runner.encode(prompt);
  const int64_t longest = runner.config().model_max_length;
  if (longest > 0 && static_cast<int64_t>(tokens.size()) + options.max_new_tokens > longest) {
    call.note(fmt::format("{} prompt tokens and {} new ones are more than the {} the model was made for", tokens.size(),
                          options.max_new_tokens, longest));
  }
  speculation::GenerateOptions streamed = options;
  model::TokenStream stream(runner.tokenizer());
  if (!call.json) {
    streamed.on_token = [&stream](int32_t token) { stream_text(stream.push(token)); };
  }
  const io::Result<speculation::GenerateResult> result = runner.run(tokens, streamed, /*speculate=*/true);
  if (!call.json) {
    stream_text(stream.finish());
    if (!result || !result->tokens.empty()) stream_text("\n");
  }
  if (!result) return call.fail(result.error());
  if (call.json) {
    print_json(report_json(tokens, *result, runner.tokenizer().decode(result->tokens), settings));
  } else {
    call.note(report_line(*result));
  }
  return result->finish == speculation::Finish::kInterrupted ? kInterruptedExit : kDone;
}

int run_generate(const GenerateArguments& arguments, const Call& call) {
  const io::Result<GenerateSettings> settings = settle(arguments);
  if (!settings) return call.fail(settings.error());
  const io::Result<std::string> prompt = read_prompt(arguments);
  if (!prompt) return call.fail(prompt.error());
  const io::Result<std::unique_ptr<Runner>> runner = Runner::load(*settings, arguments.threads);
  if (!runner) return call.fail(runner.error());

  const InterruptWatch watch;
  PromptBar bar;
  speculation::GenerateOptions options;
  options.max_new_tokens = arguments.max_new_tokens;
  options.sampler = arguments.sampler;
  if (!arguments.ignore_eos) options.eos_tokens = (*runner)->end_tokens();
  options.interrupted = [&watch] { return watch.interrupted(); };
  options.on_prompt = [&bar](int64_t done, int64_t total) {
    bar.update(done, total);
    if (done == total) bar.clear();
  };
  const auto action = arguments.demonstrate ? demonstrate : generate_text;
  return action(**runner, *settings, options, *prompt, call);
}

}  // namespace

Action add_generate(CLI::App& command) {
  auto arguments = std::make_shared<GenerateArguments>();
  add_generate_options(command, *arguments);
  return [arguments](const Call& call) { return run_generate(*arguments, call); };
}

}  // namespace kda::cli
