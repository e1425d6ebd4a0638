// The generate loop: prompt in, tokens out, by plain decoding or by drafting trees and verifying them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "io/result.h"
#include "model/speculation/drafter.h"
#include "model/speculation/sampler.h"
#include "model/speculation/target.h"

namespace kda::speculation {

enum class Finish { kLength, kEos, kInterrupted };
const char* name_of(Finish finish);  // "length", "eos", "interrupted"

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  SamplerOptions sampler;
  Sampler::Coin coin;               // replaces the coins of sampler.seed; may be empty
  std::vector<int32_t> eos_tokens;  // generation ends after one of them; empty = never
  // Called with each new token as soon as it is certain. May be empty.
  std::function<void(int32_t token)> on_token;
  // Called after each chunk of the prompt. May be empty.
  std::function<void(int64_t done, int64_t total)> on_prompt;
  // Asked between chunks and between rounds; true ends generation with Finish::kInterrupted. May be empty.
  std::function<bool()> interrupted;
};

// Seconds are wall-clock. The first output token comes from the prompt's last row, so the decode phase makes the
// others.
struct GenerateStats {
  int64_t prompt_tokens = 0;
  double prefill_seconds = 0;
  int64_t decode_tokens = 0;   // output tokens after the first
  double decode_seconds = 0;   // the sum of the next three and of choosing tokens
  double draft_seconds = 0;    // proposing trees, the drafter's own cache included
  double verify_seconds = 0;   // verify passes (steps when nothing is drafted); they apply the commit of the last round
  double commit_seconds = 0;   // accepting paths: compaction of caches, and handing the features to the drafter
  int64_t verify_rounds = 0;   // 0 in plain decoding
  int64_t drafted_tokens = 0;  // nodes below the roots, all rounds
  int64_t accepted_tokens = 0;  // of these, tokens that were emitted
};

struct GenerateResult {
  std::vector<int32_t> tokens;  // an end token included
  Finish finish = Finish::kLength;
  GenerateStats stats;

  // Output tokens a verify round, the round's own (bonus) token included; 0 without rounds.
  double tokens_per_round() const;
};

// Continues the empty sequence of `target` with the prompt and generates. With a drafter the tokens are those of plain
// decoding with the same options, whatever it proposes, provided that the target's verify gives the rows of its step.
// drafter: NULL = plain decoding. The prompt has at least one token.
io::Result<GenerateResult> generate(Target& target, Drafter* drafter, std::span<const int32_t> prompt,
                                    const GenerateOptions& options);

}  // namespace kda::speculation
