#include "cli/generate/runner.h"

#include "model/speculation/eagle3_drafter.h"
#include "model/speculation/ngram_drafter.h"

namespace kda::cli {

io::Result<std::unique_ptr<Runner>> Runner::load(const GenerateSettings& settings, int threads) {
  model::ModelOptions options;
  options.backend = settings.backend;
  options.extend_numerics = options.verify_numerics = settings.numerics;
  options.threads = threads;
  options.max_nodes = settings.algorithm == Algorithm::kNone ? 1 : settings.shape.draft_tokens;

  // The drafter's config says which features the model has to give, so it is read first.
  const io::Result<model::Config> config = model::Config::read(settings.model + "/config.json");
  if (!config) return io::Error{config.error()};
  if (settings.algorithm == Algorithm::kEagle3) {
    const auto drafter = speculation::Eagle3Config::read(settings.draft_model + "/config.json");
    if (!drafter) return io::Error{drafter.error()};
    io::Result<std::vector<int>> layers = drafter->feature_layers(config->num_layers);
    if (!layers) return io::Error{settings.draft_model + ": " + layers.error()};
    options.feature_layers = std::move(*layers);
  }

  io::Result<model::Tokenizer> tokenizer = model::Tokenizer::load(settings.model, *config);
  if (!tokenizer) return io::Error{tokenizer.error()};
  std::unique_ptr<Runner> runner(new Runner(std::move(*tokenizer)));
  io::Result<std::unique_ptr<model::Model>> model = model::Model::load(settings.model, options);
  if (!model) return io::Error{model.error()};
  runner->model_ = std::move(*model);

  if (settings.algorithm == Algorithm::kEagle3) {
    auto drafter = speculation::Eagle3Drafter::load(settings.draft_model,
                                                    speculation::Eagle3Target::of(*runner->model_), settings.shape);
    if (!drafter) return io::Error{drafter.error()};
    runner->drafter_ = std::move(*drafter);
  } else if (settings.algorithm == Algorithm::kNgram) {
    runner->drafter_ = std::make_unique<speculation::NgramDrafter>(settings.shape);
  }
  return runner;
}

std::vector<int32_t> Runner::encode(const std::string& text) const {
  std::vector<int32_t> tokens;
  if (tokenizer_.bos() >= 0) tokens.push_back(tokenizer_.bos());
  const std::vector<int32_t> body = tokenizer_.encode(text);
  tokens.insert(tokens.end(), body.begin(), body.end());
  return tokens;
}

std::vector<int32_t> Runner::end_tokens() const {
  if (tokenizer_.eos() < 0) return {};
  return {tokenizer_.eos()};
}

io::Result<speculation::GenerateResult> Runner::run(std::span<const int32_t> prompt,
                                                    const speculation::GenerateOptions& options, bool speculate) {
  io::Result<std::unique_ptr<model::Session>> session = model::Session::create(*model_);
  if (!session) return io::Error{session.error()};
  speculation::SessionTarget target(**session);
  speculation::Drafter* drafter = speculate ? drafter_.get() : nullptr;
  if (drafter != nullptr) drafter->reset();
  return speculation::generate(target, drafter, prompt, options);
}

}  // namespace kda::cli
