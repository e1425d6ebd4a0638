// Model, tokenizer and drafter of one kda generate.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/generate/settings.h"
#include "io/result.h"
#include "model/model.h"
#include "model/speculation/generate.h"
#include "model/tokenizer.h"

namespace kda::cli {

class Runner {
 public:
  static io::Result<std::unique_ptr<Runner>> load(const GenerateSettings& settings, int threads);

  // Token ids of a text, with [BOS] in front if the model has one.
  std::vector<int32_t> encode(const std::string& text) const;
  // The tokens that end a generation.
  std::vector<int32_t> end_tokens() const;
  const model::Config& config() const { return model_->config(); }
  const model::Tokenizer& tokenizer() const { return tokenizer_; }

  // Generates on a fresh sequence: with the settings' algorithm, or by plain decoding.
  io::Result<speculation::GenerateResult> run(std::span<const int32_t> prompt,
                                              const speculation::GenerateOptions& options, bool speculate);

 private:
  explicit Runner(model::Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  model::Tokenizer tokenizer_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<speculation::Drafter> drafter_;  // null = NONE
};

}  // namespace kda::cli
