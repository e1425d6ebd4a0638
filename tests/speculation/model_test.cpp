// The demo model end to end: speculation gives the tokens of plain decoding, and enough of them a round.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "demo_model.h"
#include "model/speculation/eagle3_drafter.h"
#include "model/speculation/generate.h"
#include "model/speculation/ngram_drafter.h"
#include "model/tokenizer.h"

namespace kda::speculation {
namespace {

using ::testing::ElementsAreArray;

constexpr int kGoldenPrompts = 3;
constexpr int64_t kGoldenTokens = 48;
const std::vector<int> kFeatureLayers{2, 4, 6};

// Behind the golden prompts: the ten of the matrix. The first of these is in the measured average, too.
const char* const kMorePrompts[] = {
    "CREATE TABLE",
    "",
    "The following example shows how to use a context manager:\n\n",
    "fn main() {\n    let mut values = Vec::new();\n",
    "const fs = require('node:fs');\n",
    "cmake_minimum_required(VERSION 3.",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 2, 3, 4, 5, 6, 7,",
};

// KDA_TEST_FULL=1 runs the whole matrix, otherwise a sample of it.
bool full_matrix() {
  const char* value = std::getenv("KDA_TEST_FULL");
  return value != nullptr && std::string(value) == "1";
}

GenerateOptions options_for(int64_t tokens) {
  GenerateOptions options;
  options.max_new_tokens = tokens;
  return options;
}

class DemoModel : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!have_demo_model()) return;
    model::ModelOptions options;
    options.feature_layers = kFeatureLayers;
    io::Result<std::unique_ptr<model::Model>> loaded = model::Model::load(demo_directory(), options);
    ASSERT_TRUE(loaded) << loaded.error();
    model_ = std::move(*loaded);
    io::Result<io::SafetensorsFile> golden = io::SafetensorsFile::open(demo_directory() + "/golden.safetensors");
    ASSERT_TRUE(golden) << golden.error();
    prompts_.clear();
    golden_tokens_.clear();
    for (int i = 0; i < kGoldenPrompts; ++i) {
      prompts_.push_back(values_of<int32_t>(*golden, "prompt" + std::to_string(i) + ".ids"));
      golden_tokens_.push_back(values_of<int32_t>(*golden, "prompt" + std::to_string(i) + ".greedy"));
    }
    io::Result<model::Tokenizer> tokenizer = model::Tokenizer::load(demo_directory(), model_->config());
    ASSERT_TRUE(tokenizer) << tokenizer.error();
    for (const char* text : kMorePrompts) {
      std::vector<int32_t> tokens{tokenizer->bos()};
      const std::vector<int32_t> body = tokenizer->encode(text);
      tokens.insert(tokens.end(), body.begin(), body.end());
      prompts_.push_back(std::move(tokens));
    }
  }
  static void TearDownTestSuite() { model_.reset(); }
  void SetUp() override {
    KDA_NEEDS_DEMO_MODEL();
    ASSERT_NE(model_, nullptr);
  }

  // TargetType: SessionTarget, or one with a planted fault.
  template <class TargetType = SessionTarget>
  static GenerateResult run(Drafter* drafter, std::span<const int32_t> prompt, const GenerateOptions& options) {
    io::Result<std::unique_ptr<model::Session>> session = model::Session::create(*model_);
    EXPECT_TRUE(session) << session.error();
    if (!session) return {};
    TargetType target(**session);
    if (drafter != nullptr) drafter->reset();
    io::Result<GenerateResult> result = generate(target, drafter, prompt, options);
    EXPECT_TRUE(result) << result.error();
    return result ? std::move(*result) : GenerateResult{};
  }

  static std::unique_ptr<Drafter> eagle3(const TreeShape& shape) {
    auto loaded = Eagle3Drafter::load(demo_directory() + "/eagle3", Eagle3Target::of(*model_), shape);
    EXPECT_TRUE(loaded) << loaded.error();
    return loaded ? std::move(*loaded) : nullptr;
  }

  static inline std::unique_ptr<model::Model> model_;
  static inline std::vector<std::vector<int32_t>> prompts_, golden_tokens_;
};

TEST_F(DemoModel, PlainDecodingGivesTheGoldenTokens) {
  for (int i = 0; i < kGoldenPrompts; ++i) {
    EXPECT_THAT(run(nullptr, prompts_[i], options_for(kGoldenTokens)).tokens, ElementsAreArray(golden_tokens_[i]))
        << "prompt " << i;
  }
}

// An independent simulation of the same drafter and trees gives 2.37 on average.
TEST_F(DemoModel, TokensPerRound) {
  const std::unique_ptr<Drafter> drafter = eagle3({5, 4, 16});
  double sum = 0;
  constexpr int kPrompts = kGoldenPrompts + 1;
  for (int i = 0; i < kPrompts; ++i) {
    const GenerateResult result = run(drafter.get(), prompts_[i], options_for(kGoldenTokens));
    if (i < kGoldenPrompts) {
      EXPECT_THAT(result.tokens, ElementsAreArray(golden_tokens_[i])) << "prompt " << i;
    }
    RecordProperty("prompt" + std::to_string(i), std::to_string(result.tokens_per_round()));
    sum += result.tokens_per_round();
  }
  std::printf("tokens a round: %.3f\n", sum / kPrompts);
  EXPECT_GE(sum / kPrompts, 2.2);
}

// ---- The same tokens whatever is drafted --------------------------------------------------------------------------

std::vector<TreeShape> matrix() {
  std::vector<TreeShape> shapes;
  for (int topk : {1, 2, 4, 8}) {
    for (int steps = 1; steps <= 6; ++steps) {
      for (int draft_tokens : {2, 3, 4, 6, 8, 12, 16, 24, 32}) {
        // Beyond the pool a larger tree is the same tree.
        const int pool = topk + (steps - 1) * topk * topk;
        if (draft_tokens <= pool + 1) shapes.push_back({steps, topk, draft_tokens});
      }
    }
  }
  return shapes;
}

TEST_F(DemoModel, SpeculationGivesTheTokensOfPlainDecoding) {
  const std::vector<TreeShape> shapes = matrix();
  const int64_t tokens = full_matrix() ? 24 : 16;
  const size_t stride = full_matrix() ? 1 : 53;  // a prime: the sample meets every part of the matrix
  size_t runs = 0;
  std::vector<std::vector<int32_t>> plain;
  for (const std::vector<int32_t>& prompt : prompts_) plain.push_back(run(nullptr, prompt, options_for(tokens)).tokens);
  for (size_t i = 0; i < shapes.size() * prompts_.size(); i += stride) {
    const TreeShape& shape = shapes[i % shapes.size()];
    const size_t prompt = i / shapes.size();
    const std::unique_ptr<Drafter> eagle = eagle3(shape);
    ASSERT_EQ(run(eagle.get(), prompts_[prompt], options_for(tokens)).tokens, plain[prompt])
        << "EAGLE3 top-k " << shape.topk << " steps " << shape.steps << " draft tokens " << shape.draft_tokens
        << " prompt " << prompt;
    ++runs;
  }
  RecordProperty("runs", static_cast<int>(runs));
}

TEST_F(DemoModel, LookUpGivesTheTokensOfPlainDecoding) {
  std::vector<TreeShape> shapes{{4, 1, 5}, {5, 4, 16}};
  if (full_matrix()) shapes.insert(shapes.end(), {{1, 8, 9}, {6, 2, 32}, {6, 8, 32}});
  double best = 0;
  for (const std::vector<int32_t>& prompt : prompts_) {
    const std::vector<int32_t> plain = run(nullptr, prompt, options_for(kGoldenTokens)).tokens;
    for (const TreeShape& shape : shapes) {
      NgramDrafter drafter(shape);
      const GenerateResult result = run(&drafter, prompt, options_for(kGoldenTokens));
      ASSERT_EQ(result.tokens, plain) << "top-k " << shape.topk << " steps " << shape.steps;
      best = std::max(best, result.tokens_per_round());
    }
  }
  EXPECT_GT(best, 1.5) << "some prompt repeats itself, and look-up must notice";
}

// The same seed gives the same text, with speculation and without.
TEST_F(DemoModel, SampledTokensAreThoseOfPlainDecoding) {
  const std::unique_ptr<Drafter> drafter = eagle3({4, 4, 16});
  std::vector<std::vector<int32_t>> outputs;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    GenerateOptions options = options_for(32);
    options.sampler.temperature = 0.8;
    options.sampler.top_p = 0.95;
    options.sampler.seed = seed;
    const std::vector<int32_t>& prompt = prompts_[seed % prompts_.size()];
    const std::vector<int32_t> plain = run(nullptr, prompt, options).tokens;
    EXPECT_THAT(run(drafter.get(), prompt, options).tokens, ElementsAreArray(plain)) << "seed " << seed;
    options.sampler.seed += 100;
    EXPECT_NE(run(nullptr, prompt, options).tokens, plain) << "another seed, another text";
  }
}

// A prompt of several chunks.
TEST_F(DemoModel, LongPromptsToo) {
  std::vector<int32_t> prompt{prompts_[0][0]};
  for (int i = 0; i < 30; ++i) prompt.insert(prompt.end(), prompts_[1].begin() + 1, prompts_[1].end());
  const std::unique_ptr<Drafter> drafter = eagle3({5, 4, 16});
  const std::vector<int32_t> plain = run(nullptr, prompt, options_for(24)).tokens;
  EXPECT_THAT(run(drafter.get(), prompt, options_for(24)).tokens, ElementsAreArray(plain));
}

// ---- Planted faults -----------------------------------------------------------------------------------------------

// Spoils what another drafter does.
class WrongDrafter : public Drafter {
 public:
  enum class Fault { kOtherTokens, kOtherFeatures, kLateFeatures };
  WrongDrafter(Drafter& good, Fault fault) : good_(good), fault_(fault) {}
  void reset() override {
    good_.reset();
    last_.clear();
  }
  void observe(std::span<const int32_t> tokens, std::span<const float> features) override {
    std::vector<float> changed(features.begin(), features.end());
    if (fault_ == Fault::kOtherFeatures) {
      for (float& value : changed) value = -value;
    } else if (fault_ == Fault::kLateFeatures) {
      const size_t width = features.size() / tokens.size();
      last_.resize(width, 0.0f);
      std::copy_backward(changed.begin(), changed.end() - static_cast<ptrdiff_t>(width), changed.end());
      std::copy(last_.begin(), last_.end(), changed.begin());
      last_.assign(features.end() - static_cast<ptrdiff_t>(width), features.end());
    }
    good_.observe(tokens, changed);
  }
  DraftTree propose(int32_t root) override {
    DraftTree tree = good_.propose(root);
    if (fault_ == Fault::kOtherTokens) {
      for (int node = 1; node < tree.size(); ++node) tree.tokens[node] = (tree.tokens[node] + 7) % 4096;
    }
    return tree;
  }

 private:
  Drafter& good_;
  Fault fault_;
  std::vector<float> last_;
};

TEST_F(DemoModel, AWrongDrafterOnlyCostsRounds) {
  const std::unique_ptr<Drafter> good = eagle3({5, 4, 16});
  double with_good = 0;
  for (int i = 0; i < kGoldenPrompts; ++i) {
    with_good += run(good.get(), prompts_[i], options_for(kGoldenTokens)).tokens_per_round() / kGoldenPrompts;
  }
  using Fault = WrongDrafter::Fault;
  for (Fault fault : {Fault::kOtherTokens, Fault::kOtherFeatures, Fault::kLateFeatures}) {
    double with_wrong = 0;
    for (int i = 0; i < kGoldenPrompts; ++i) {
      WrongDrafter wrong(*good, fault);
      const GenerateResult result = run(&wrong, prompts_[i], options_for(kGoldenTokens));
      EXPECT_THAT(result.tokens, ElementsAreArray(golden_tokens_[i]));
      with_wrong += result.tokens_per_round() / kGoldenPrompts;
    }
    EXPECT_LT(with_wrong, with_good - 0.3) << "fault " << static_cast<int>(fault);
  }
}

// Accepts another node than the walk ended at: the parent, or a later node of the tree.
template <int kShift>
class WrongAccept : public SessionTarget {
 public:
  using SessionTarget::SessionTarget;
  io::Result<model::RowsView> verify(const DraftTree& tree) override {
    parents_ = tree.parents;
    return SessionTarget::verify(tree);
  }
  io::Outcome accept(int32_t tip) override {
    const int32_t last = static_cast<int32_t>(parents_.size()) - 1;
    return SessionTarget::accept(kShift > 0 ? std::min(tip + kShift, last) : tip > 0 ? parents_[tip] : tip);
  }

 private:
  std::vector<int32_t> parents_;
};

TEST_F(DemoModel, AWrongAcceptedPathIsNoticed) {
  const std::unique_ptr<Drafter> drafter = eagle3({5, 4, 16});
  for (int i = 0; i < kGoldenPrompts; ++i) {
    const GenerateOptions options = options_for(kGoldenTokens);
    EXPECT_NE(run<WrongAccept<1>>(drafter.get(), prompts_[i], options).tokens, golden_tokens_[i]) << "prompt " << i;
    EXPECT_NE(run<WrongAccept<-1>>(drafter.get(), prompts_[i], options).tokens, golden_tokens_[i]) << "prompt " << i;
  }
}

}  // namespace
}  // namespace kda::speculation
