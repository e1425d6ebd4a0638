#include "cli/replay/attempt.h"

#include <algorithm>

#include "cli/replay/judge.h"

namespace kda::cli::replay {

Attempt attempt(std::span<const std::byte> bytes, const kda_context* context, int64_t max_elements) {
  io::Result<io::SafetensorsFile> file = io::SafetensorsFile::parse(bytes, "memory.safetensors");
  if (!file) return Attempt::kNotSafetensors;
  const io::Result<Case> replay = read_case(std::move(*file));
  if (!replay) return Attempt::kNotACase;
  const io::Result<PreparedPlan> prepared = prepare(*replay, context, KDA_BACKEND_REFERENCE, KDA_EXACT);
  if (!prepared) return Attempt::kNotPlanned;
  const int64_t state_work =
      product_or_negative({replay->tokens + replay->rows + 1, replay->value_heads, replay->value_dim, replay->key_dim});
  const int64_t conv_work = product_or_negative({replay->tokens + replay->rows + 1, replay->channels});
  if (state_work < 0 || conv_work < 0 || std::max(state_work, conv_work) > max_elements) return Attempt::kNotRun;
  CallMemory memory;
  const io::Result<Outputs> outputs = run(*replay, *prepared, memory);
  if (!outputs) return Attempt::kNotRun;
  const std::vector<Verdict> verdicts = judge(*replay, *prepared, "", *outputs);
  const bool pass = std::all_of(verdicts.begin(), verdicts.end(), [](const Verdict& verdict) { return verdict.pass; });
  return pass ? Attempt::kPassed : Attempt::kFailed;
}

}  // namespace kda::cli::replay
