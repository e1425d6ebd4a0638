#include "cli/generate/report.h"

#include <fmt/format.h>

namespace kda::cli {

namespace {

using Json = nlohmann::ordered_json;

double rate(int64_t tokens, double seconds) { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0; }

Json phase(int64_t tokens, double seconds) {
  return {{"tokens", tokens}, {"seconds", seconds}, {"tokens_per_second", rate(tokens, seconds)}};
}

}  // namespace

double tokens_per_second(const speculation::GenerateResult& result) {
  return rate(result.stats.decode_tokens, result.stats.decode_seconds);
}

nlohmann::ordered_json report_json(const std::vector<int32_t>& prompt, const speculation::GenerateResult& result,
                                   const std::string& text, const GenerateSettings& settings) {
  const speculation::GenerateStats& stats = result.stats;
  Json numbers;
  numbers["algorithm"] = name_of(settings.algorithm);
  numbers["prefill"] = phase(stats.prompt_tokens, stats.prefill_seconds);
  numbers["decode"] = phase(stats.decode_tokens, stats.decode_seconds);
  numbers["tokens_per_second"] = tokens_per_second(result);
  numbers["verify_rounds"] = stats.verify_rounds;
  // Without rounds there is no such number.
  const bool rounds = stats.verify_rounds > 0;
  numbers["tokens_per_round"] = rounds ? Json(result.tokens_per_round()) : Json(nullptr);
  numbers["accepted_length"] =
      rounds ? Json(static_cast<double>(stats.accepted_tokens) / static_cast<double>(stats.verify_rounds))
             : Json(nullptr);
  numbers["drafted_tokens"] = stats.drafted_tokens;
  numbers["accepted_tokens"] = stats.accepted_tokens;
  numbers["draft_seconds"] = stats.draft_seconds;
  numbers["verify_seconds"] = stats.verify_seconds;
  numbers["commit_seconds"] = stats.commit_seconds;
  return {{"prompt_tokens", prompt},
          {"output_tokens", result.tokens},
          {"text", text},
          {"finish", speculation::name_of(result.finish)},
          {"stats", std::move(numbers)}};
}

std::string report_line(const speculation::GenerateResult& result) {
  const speculation::GenerateStats& stats = result.stats;
  std::string line = fmt::format("{} prompt tokens in {:.2f} s, {} tokens at {:.1f} tokens/s", stats.prompt_tokens,
                                 stats.prefill_seconds, result.tokens.size(), tokens_per_second(result));
  if (stats.verify_rounds > 0) {
    line += fmt::format(", {} verify rounds, {:.2f} tokens a round", stats.verify_rounds, result.tokens_per_round());
  }
  return line;
}

}  // namespace kda::cli
