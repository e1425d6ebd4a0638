// The generate loop around a target of a few tokens: the same tokens as plain decoding, the law of the target, and
// planted faults that both checks must notice.
#include "model/speculation/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "fake_target.h"
#include "model/speculation/ngram_drafter.h"

namespace kda::speculation {
namespace {

using ::testing::ElementsAreArray;

constexpr int kVocabulary = 4;
const std::vector<int32_t> kPrompt{0, 1, 2, 3, 0, 1, 2};

GenerateOptions options_for(int64_t tokens, double temperature = 0) {
  GenerateOptions options;
  options.max_new_tokens = tokens;
  options.sampler.temperature = temperature;
  options.sampler.seed = 5;
  return options;
}

std::vector<int32_t> plain(uint64_t seed, const GenerateOptions& options) {
  FakeTarget target(kVocabulary, seed);
  return generate(target, nullptr, kPrompt, options)->tokens;
}

TEST(Generate, DraftsNeverChangeTokens) {
  for (double temperature : {0.0, 1.0, 1.7}) {
    for (uint64_t seed = 0; seed < 300; ++seed) {
      const TreeShape shape{1 + static_cast<int>(seed % 6), 1 + static_cast<int>(seed % 5),
                            2 + static_cast<int>(seed % 31)};
      const GenerateOptions options = options_for(40, temperature);
      FakeTarget target(kVocabulary, seed);
      RandomDrafter drafter(kVocabulary, shape, seed);
      const io::Result<GenerateResult> result = generate(target, &drafter, kPrompt, options);
      ASSERT_TRUE(result) << result.error();
      ASSERT_THAT(result->tokens, ElementsAreArray(plain(seed, options))) << "seed " << seed;
    }
  }
}

// Each fault breaks the equality above, in most runs.
TEST(Generate, EqualityNoticesPlantedFaults) {
  using Fault = FakeTarget::Fault;
  for (Fault fault : {Fault::kAcceptsOneTooFar, Fault::kAcceptsOneTooFew, Fault::kIgnoresParents}) {
    int noticed = 0;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const GenerateOptions options = options_for(40);
      FakeTarget target(kVocabulary, seed, fault);
      RandomDrafter drafter(kVocabulary, {4, 3, 12}, seed);
      noticed += generate(target, &drafter, kPrompt, options)->tokens != plain(seed, options);
    }
    EXPECT_GE(noticed, 15) << "fault " << static_cast<int>(fault);
  }
}

TEST(Generate, TheDrafterSeesTheSequenceWithoutGaps) {
  FakeTarget target(kVocabulary, 3);
  RandomDrafter drafter(kVocabulary, {4, 3, 12}, 3);
  const io::Result<GenerateResult> result = generate(target, &drafter, kPrompt, options_for(40));
  std::vector<int32_t> sequence = kPrompt;
  sequence.insert(sequence.end(), result->tokens.begin(), result->tokens.end());
  ASSERT_GT(drafter.observed.size(), kPrompt.size());
  sequence.resize(drafter.observed.size());
  EXPECT_THAT(drafter.observed, ElementsAreArray(sequence));
  EXPECT_EQ(drafter.feature_rows, static_cast<int64_t>(sequence.size()));
  EXPECT_THAT(target.context(), ElementsAreArray(sequence));
}

TEST(Generate, CutsExactlyAtTheLimit) {
  for (int64_t limit : {0, 1, 2, 3, 5, 7}) {
    FakeTarget target(kVocabulary);
    RandomDrafter drafter(kVocabulary, {6, 4, 32}, 1);
    const io::Result<GenerateResult> result = generate(target, &drafter, kPrompt, options_for(limit));
    EXPECT_EQ(static_cast<int64_t>(result->tokens.size()), limit);
    EXPECT_EQ(result->finish, Finish::kLength);
  }
}

TEST(Generate, EndsWithTheEndToken) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    GenerateOptions options = options_for(60);
    const std::vector<int32_t> endless = plain(seed, options);
    options.eos_tokens = {2};
    FakeTarget target(kVocabulary, seed);
    RandomDrafter drafter(kVocabulary, {4, 4, 24}, seed);
    const io::Result<GenerateResult> result = generate(target, &drafter, kPrompt, options);
    const auto end = std::find(endless.begin(), endless.end(), 2);
    if (end == endless.end()) {
      EXPECT_EQ(result->finish, Finish::kLength);
      continue;
    }
    EXPECT_EQ(result->finish, Finish::kEos);
    EXPECT_THAT(result->tokens, ElementsAreArray(endless.begin(), end + 1)) << "seed " << seed;
  }
}

TEST(Generate, StopsWhenInterrupted) {
  // While reading the prompt: nothing is generated.
  FakeTarget target(kVocabulary);
  GenerateOptions options = options_for(40);
  options.interrupted = [] { return true; };
  io::Result<GenerateResult> result = generate(target, nullptr, kPrompt, options);
  EXPECT_EQ(result->finish, Finish::kInterrupted);
  EXPECT_TRUE(result->tokens.empty());

  // Later: what there is stays, and it is the beginning of the whole output.
  int64_t emitted = 0;
  options.on_token = [&](int32_t) { ++emitted; };
  options.interrupted = [&] { return emitted >= 10; };
  FakeTarget again(kVocabulary);
  RandomDrafter drafter(kVocabulary, {4, 3, 12}, 1);
  result = generate(again, &drafter, kPrompt, options);
  EXPECT_EQ(result->finish, Finish::kInterrupted);
  EXPECT_EQ(static_cast<int64_t>(result->tokens.size()), emitted);
  const std::vector<int32_t> whole = plain(1, options_for(40));
  ASSERT_GE(result->tokens.size(), 10u);
  EXPECT_THAT(result->tokens, ElementsAreArray(whole.begin(), whole.begin() + emitted));
}

TEST(Generate, CountsRoundsAndTokens) {
  FakeTarget target(kVocabulary, 3);
  RandomDrafter drafter(kVocabulary, {4, 3, 12}, 3);
  std::vector<int64_t> progress;
  GenerateOptions options = options_for(41);
  options.on_prompt = [&](int64_t done, int64_t total) {
    progress.push_back(done);
    EXPECT_EQ(total, static_cast<int64_t>(kPrompt.size()));
  };
  const io::Result<GenerateResult> result = generate(target, &drafter, kPrompt, options);
  EXPECT_THAT(progress, ::testing::ElementsAre(3, 6, 7));
  const GenerateStats& stats = result->stats;
  EXPECT_EQ(stats.prompt_tokens, 7);
  EXPECT_EQ(stats.decode_tokens, 40);
  EXPECT_GT(stats.prefill_seconds, 0);
  EXPECT_GT(stats.verify_seconds, 0);
  EXPECT_GE(stats.decode_seconds, stats.draft_seconds + stats.verify_seconds + stats.commit_seconds);
  EXPECT_EQ(stats.verify_rounds, static_cast<int64_t>(drafter.roots.size()));
  EXPECT_EQ(stats.drafted_tokens, stats.verify_rounds * 11);
  // Every round emits its accepted tokens and one more; the last may end before its bonus.
  EXPECT_GE(stats.accepted_tokens + stats.verify_rounds, stats.decode_tokens);
  EXPECT_LE(stats.accepted_tokens + stats.verify_rounds, stats.decode_tokens + 1);
  EXPECT_DOUBLE_EQ(result->tokens_per_round(), 41.0 / static_cast<double>(stats.verify_rounds));

  FakeTarget other(kVocabulary, 3);
  const io::Result<GenerateResult> without = generate(other, nullptr, kPrompt, options);
  EXPECT_EQ(without->stats.verify_rounds, 0);
  EXPECT_EQ(without->tokens_per_round(), 0);
}

TEST(Generate, BadArgumentsAreErrors) {
  FakeTarget target(kVocabulary);
  EXPECT_FALSE(generate(target, nullptr, {}, options_for(4)));
  EXPECT_FALSE(generate(target, nullptr, kPrompt, options_for(4, -1)));
}

// ---- The law of the output ----------------------------------------------------------------------------------------

constexpr int kLength = 3;
constexpr int kGrain = FakeTarget::kGrain;
using Law = std::map<std::vector<int32_t>, int>;  // outputs by how many of the kGrain^kLength coin triples give them

// All coins that matter: one of kGrain cells for each position.
template <class Run>
Law enumerate(const Run& run) {
  Law law;
  for (int coins = 0; coins < kGrain * kGrain * kGrain; ++coins) {
    ++law[run([coins](uint64_t position) {
      int cell = coins;
      for (uint64_t i = 0; i < position; ++i) cell /= kGrain;
      return (cell % kGrain + 0.5) / kGrain;
    })];
  }
  return law;
}

// What the target's own probabilities say.
Law expected_law(uint64_t seed) {
  const FakeTarget target(kVocabulary, seed);
  Law law;
  const auto extend = [&](const auto& self, std::vector<int32_t> output, int weight) -> void {
    if (static_cast<int>(output.size()) == kLength) {
      law[output] += weight;
      return;
    }
    std::vector<int32_t> context = kPrompt;
    context.insert(context.end(), output.begin(), output.end());
    const std::vector<int> counts = target.law(context);
    for (int32_t token = 0; token < kVocabulary; ++token) {
      if (counts[token] == 0) continue;
      std::vector<int32_t> longer = output;
      longer.push_back(token);
      self(self, longer, weight * counts[token]);
    }
  };
  extend(extend, {}, 1);
  return law;
}

Law generated_law(uint64_t seed) {
  return enumerate([seed](const Sampler::Coin& coin) {
    FakeTarget target(kVocabulary, seed);
    RandomDrafter drafter(kVocabulary, {3, 2, 6}, seed);
    GenerateOptions options = options_for(kLength, 1.0);
    options.coin = coin;
    return generate(target, &drafter, kPrompt, options)->tokens;
  });
}

TEST(GenerateLaw, IsTheTargetsWhateverIsDrafted) {
  for (uint64_t seed = 0; seed < 12; ++seed) EXPECT_EQ(generated_law(seed), expected_law(seed)) << "seed " << seed;
}

// The same enumeration must notice sampling that is not lossless.
TEST(GenerateLaw, NoticesLossyAcceptance) {
  int noticed = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const Law lossy = enumerate([seed](const Sampler::Coin& coin) {
      FakeTarget target(kVocabulary, seed);
      RandomDrafter drafter(kVocabulary, {3, 2, 6}, seed);
      SamplerOptions sampler_options;
      sampler_options.temperature = 1;
      Sampler sampler(sampler_options, coin);
      std::vector<int32_t> output;
      const io::Result<model::RowsView> row = target.prefill(kPrompt, {});
      output.push_back(sampler.choose(row->logits_row(0), 0));
      while (output.size() < kLength) {
        const DraftTree tree = drafter.propose(output.back());
        const io::Result<model::RowsView> rows = target.verify(tree);
        int node = 0;
        while (output.size() < kLength) {
          int32_t token = sampler.choose(rows->logits_row(node), output.size());
          // The fault: a drafted token is preferred whenever the target finds it likely enough ("typical acceptance").
          for (int child = node + 1; child < tree.size(); ++child) {
            if (tree.parents[child] == node && rows->logits_row(node)[tree.tokens[child]] > std::log(0.3f)) {
              token = tree.tokens[child];
              break;
            }
          }
          output.push_back(token);
          const int child = tree.child_with_token(node, token);
          if (child < 0) break;
          node = child;
        }
        EXPECT_TRUE(target.accept(node));
      }
      return output;
    });
    noticed += lossy != expected_law(seed);
  }
  EXPECT_GE(noticed, 10);
}

// ---- Look-up ------------------------------------------------------------------------------------------------------

TEST(NgramDrafter, ContinuesTheLongestMatch) {
  NgramDrafter drafter({3, 1, 8});
  drafter.observe(std::vector<int32_t>{1, 2, 3, 4, 9, 3, 7, 2}, {});
  const DraftTree tree = drafter.propose(3);  // "2 3" was followed by 4 9 3; "3" alone also by 7
  EXPECT_THAT(tree.tokens, ::testing::ElementsAre(3, 4, 9, 3));
  EXPECT_THAT(tree.parents, ::testing::ElementsAre(-1, 0, 1, 2));
}

TEST(NgramDrafter, BranchesWhereMatchesDisagree) {
  NgramDrafter drafter({2, 4, 8});
  drafter.observe(std::vector<int32_t>{5, 1, 2, 5, 3, 4, 5, 1, 6}, {});
  const DraftTree tree = drafter.propose(5);  // 5 was followed by "1 2", "3 4" and "1 6"
  EXPECT_EQ(tree.size(), 6);
  const int one = tree.child_with_token(0, 1), three = tree.child_with_token(0, 3);
  EXPECT_EQ(one, 1) << "seen twice, so first";
  EXPECT_GT(tree.child_with_token(one, 2), 0);
  EXPECT_GT(tree.child_with_token(one, 6), 0);
  EXPECT_GT(tree.child_with_token(three, 4), 0);
}

TEST(NgramDrafter, WithoutAMatchTheTreeIsTheRoot) {
  NgramDrafter drafter({3, 4, 8});
  EXPECT_EQ(drafter.propose(1).size(), 1);
  drafter.observe(std::vector<int32_t>{1, 2}, {});
  EXPECT_EQ(drafter.propose(3).size(), 1);
  drafter.observe(std::vector<int32_t>{3}, {});
  EXPECT_THAT(drafter.propose(2).tokens, ::testing::ElementsAre(2, 3, 2, 3)) << "the text is taken to repeat";
  drafter.reset();
  EXPECT_EQ(drafter.propose(3).size(), 1);
}

}  // namespace
}  // namespace kda::speculation
