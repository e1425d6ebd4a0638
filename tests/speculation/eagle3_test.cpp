// The EAGLE-3 drafter against logits of an independent program, its tree against its own sequence pass, and checkpoints
// that do not fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "demo_model.h"
#include "io/file.h"
#include "model/speculation/eagle3_drafter.h"

namespace kda::speculation {
namespace {

using ::testing::HasSubstr;

constexpr int kHidden = 256, kVocabulary = 4096, kFeatureLayers = 3;

// The drafter of the demo model without loading the target: only its embedding is used.
class Eagle3 : public ::testing::Test {
 protected:
  void SetUp() override {
    KDA_NEEDS_DEMO_MODEL();
    io::Result<io::Checkpoint> checkpoint = io::Checkpoint::open(demo_directory());
    ASSERT_TRUE(checkpoint) << checkpoint.error();
    model_ = std::make_unique<io::Checkpoint>(std::move(*checkpoint));
    const io::Result<const io::TensorInfo*> embedding =
        model_->require("model.embed_tokens.weight", io::TensorType::kBF16, {kVocabulary, kHidden});
    ASSERT_TRUE(embedding) << embedding.error();
    target_.threads = &threads_;
    target_.hidden_size = kHidden;
    target_.vocab_size = kVocabulary;
    target_.feature_layers = kFeatureLayers;
    target_.embedding = {(*embedding)->data.data(), true, kVocabulary, kHidden, kHidden};
    io::Result<io::SafetensorsFile> golden = io::SafetensorsFile::open(demo_directory() + "/golden.safetensors");
    ASSERT_TRUE(golden) << golden.error();
    golden_ = std::make_unique<io::SafetensorsFile>(std::move(*golden));
  }

  std::unique_ptr<Eagle3Drafter> drafter(const TreeShape& shape) {
    io::Result<std::unique_ptr<Eagle3Drafter>> loaded =
        Eagle3Drafter::load(demo_directory() + "/eagle3", target_, shape);
    EXPECT_TRUE(loaded) << loaded.error();
    return loaded ? std::move(*loaded) : nullptr;
  }

  model::Threads threads_{2};
  std::unique_ptr<io::Checkpoint> model_;
  std::unique_ptr<io::SafetensorsFile> golden_;
  Eagle3Target target_;
};

double largest_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(a[i]) - b[i]);
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

TEST_F(Eagle3, LogitsOfTheGoldenPrompts) {
  const std::unique_ptr<Eagle3Drafter> eagle = drafter({});
  for (int prompt = 0; prompt < 3; ++prompt) {
    const std::string name = "prompt" + std::to_string(prompt);
    const std::vector<float> logits =
        eagle->sequence_logits(values_of<int32_t>(*golden_, name + ".ids"), values_of<float>(*golden_, name + ".aux"));
    const double difference = largest_difference(logits, values_of<float>(*golden_, name + ".draft_logits"));
    EXPECT_LT(difference, 1e-3) << name;
    RecordProperty(name, std::to_string(difference));
  }
}

// Planted faults in what surrounds the drafter: each must show against the golden logits.
TEST_F(Eagle3, GoldenLogitsNoticePlantedFaults) {
  const std::unique_ptr<Eagle3Drafter> eagle = drafter({});
  const std::vector<int32_t> ids = values_of<int32_t>(*golden_, "prompt1.ids");
  const std::vector<float> features = values_of<float>(*golden_, "prompt1.aux");
  const std::vector<float> expected = values_of<float>(*golden_, "prompt1.draft_logits");
  ASSERT_LT(largest_difference(eagle->sequence_logits(ids, features), expected), 1e-3);
  std::vector<int32_t> shifted = ids;  // joined with the embedding of token t instead of t + 1
  std::rotate(shifted.rbegin(), shifted.rbegin() + 1, shifted.rend());
  EXPECT_GT(largest_difference(eagle->sequence_logits(shifted, features), expected), 0.1);
  std::vector<float> swapped = features;  // layers in another order
  for (size_t row = 0; row < ids.size(); ++row) {
    std::swap_ranges(swapped.begin() + row * 768, swapped.begin() + row * 768 + 256, swapped.begin() + row * 768 + 512);
  }
  EXPECT_GT(largest_difference(eagle->sequence_logits(ids, swapped), expected), 0.1);
}

// However the sequence arrives, the same tree comes out; and a path of the tree has the scores that the drafter gives
// when it is run as one sequence with its own outputs as features, token by token.
TEST_F(Eagle3, TreesDoNotDependOnHowTheSequenceArrived) {
  const std::vector<int32_t> ids = values_of<int32_t>(*golden_, "prompt1.ids");
  const std::vector<float> features = values_of<float>(*golden_, "prompt1.aux");
  const size_t width = features.size() / ids.size();
  const std::unique_ptr<Eagle3Drafter> eagle = drafter({5, 4, 32});
  const size_t last = ids.size() - 1;
  eagle->observe(std::span(ids).first(last), std::span(features).first(last * width));
  const DraftTree whole = eagle->propose(ids[last]);
  EXPECT_EQ(whole.size(), 32);
  EXPECT_EQ(eagle->length(), static_cast<int64_t>(last));

  // Token by token, with a tree (whose rows must vanish) at every step.
  eagle->reset();
  for (size_t t = 0; t < last; ++t) {
    eagle->observe(std::span(ids).subspan(t, 1), std::span(features).subspan(t * width, width));
    const DraftTree tree = eagle->propose(ids[t + 1]);
    if (t + 1 < last) continue;
    EXPECT_EQ(tree.tokens, whole.tokens);
    EXPECT_EQ(tree.parents, whole.parents);
  }
  // A wrong feature must change the tree, or the comparison says nothing.
  std::vector<float> wrong = features;
  for (size_t i = (last - 1) * width; i < last * width; ++i) wrong[i] = -wrong[i];
  eagle->reset();
  eagle->observe(std::span(ids).first(last), std::span<const float>(wrong).first(last * width));
  EXPECT_NE(eagle->propose(ids[last]).tokens, whole.tokens);
}

// Nodes must see their ancestors and nothing else of the tree: a chain is computed alone, without siblings, and has to
// be found in the wide tree with the same continuation.
TEST_F(Eagle3, ABranchDoesNotSeeItsSiblings) {
  for (int prompt = 0; prompt < 3; ++prompt) {
    const std::string name = "prompt" + std::to_string(prompt);
    const std::vector<int32_t> ids = values_of<int32_t>(*golden_, name + ".ids");
    const std::vector<float> features = values_of<float>(*golden_, name + ".aux");
    const size_t last = ids.size() - 1, width = features.size() / ids.size();
    const auto propose = [&](const TreeShape& shape) {
      const std::unique_ptr<Eagle3Drafter> eagle = drafter(shape);
      eagle->observe(std::span(ids).first(last), std::span(features).first(last * width));
      return eagle->propose(ids[last]);
    };
    const DraftTree chain = propose({5, 1, 6});
    ASSERT_EQ(chain.size(), 6);
    const DraftTree wide = propose({5, 8, 64});
    // The first children in node order of best score are not known here, so follow the chain's tokens.
    int node = 0, found = 0;
    for (int i = 1; i < chain.size(); ++i) {
      node = wide.child_with_token(node, chain.tokens[i]);
      if (node < 0) break;
      ++found;
    }
    EXPECT_GE(found, 3) << name;
  }
}

TEST_F(Eagle3, WithoutFeaturesTheTreeIsTheRoot) {
  const std::unique_ptr<Eagle3Drafter> eagle = drafter({});
  EXPECT_EQ(eagle->propose(7).size(), 1);
}

// A prompt long enough for several passes and for the cache to grow.
TEST_F(Eagle3, LongSequencesInPiecesAgreeWithOnePass) {
  const std::vector<int32_t> prompt = values_of<int32_t>(*golden_, "prompt1.ids");
  const std::vector<float> prompt_features = values_of<float>(*golden_, "prompt1.aux");
  std::vector<int32_t> ids;
  std::vector<float> features;
  while (ids.size() < 1200) {
    ids.insert(ids.end(), prompt.begin(), prompt.end());
    features.insert(features.end(), prompt_features.begin(), prompt_features.end());
  }
  const size_t width = features.size() / ids.size(), last = ids.size() - 1;
  const std::unique_ptr<Eagle3Drafter> eagle = drafter({3, 4, 16});
  eagle->observe(std::span(ids).first(last), std::span(features).first(last * width));
  const DraftTree whole = eagle->propose(ids[last]);
  eagle->reset();
  for (size_t first = 0; first < last; first += 77) {
    const size_t count = std::min<size_t>(77, last - first);
    eagle->observe(std::span(ids).subspan(first, count), std::span(features).subspan(first * width, count * width));
  }
  const DraftTree pieces = eagle->propose(ids[last]);
  EXPECT_EQ(pieces.tokens, whole.tokens);
  EXPECT_EQ(eagle->length(), static_cast<int64_t>(last));
}

// ---- Checkpoints that do not fit ----------------------------------------------------------------------------------

class BadEagle3 : public Eagle3 {
 protected:
  void SetUp() override {
    Eagle3::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    directory_ = std::filesystem::path(::testing::TempDir()) /
                 (std::string("kda_eagle3_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    config_ = *io::read_file(demo_directory() + "/eagle3/config.json");
    io::Result<io::SafetensorsFile> file = io::SafetensorsFile::open(demo_directory() + "/eagle3/model.safetensors");
    ASSERT_TRUE(file) << file.error();
    file_ = std::make_unique<io::SafetensorsFile>(std::move(*file));
    for (const io::TensorInfo& tensor : file_->tensors()) {
      tensors_[tensor.name] = {tensor.name, tensor.type, tensor.shape, tensor.data};
    }
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void replace(const std::string& from, const std::string& to) {
    const size_t at = config_.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    config_.replace(at, from.size(), to);
  }

  // What loading says; "" = it loads.
  std::string error() {
    std::ofstream(directory_ / "config.json") << config_;
    std::vector<io::TensorToWrite> tensors;
    for (const auto& [name, tensor] : tensors_) tensors.push_back(tensor);
    EXPECT_TRUE(io::write_safetensors(directory_ / "model.safetensors", tensors, {}));
    const auto loaded = Eagle3Drafter::load(directory_, target_, {});
    return loaded ? "" : loaded.error();
  }

  std::filesystem::path directory_;
  std::string config_;
  std::unique_ptr<io::SafetensorsFile> file_;
  std::map<std::string, io::TensorToWrite> tensors_;
};

TEST_F(BadEagle3, TheCopyItselfLoads) { EXPECT_EQ(error(), ""); }

TEST_F(BadEagle3, ConfigValuesAreChecked) {
  const std::pair<std::pair<const char*, const char*>, const char*> cases[] = {
      {{"\"hidden_size\": 256", "\"hidden_size\": -256"}, "hidden_size: expected a whole number"},
      {{"\"hidden_size\": 256", "\"hidden_size\": 1e300"}, "hidden_size: expected a whole number"},
      {{"\"hidden_size\": 256", "\"hidden_size\": \"256\""}, "hidden_size: expected a whole number"},
      {{"\"hidden_size\": 256", "\"other\": 256"}, "no field \"hidden_size\""},
      {{"\"vocab_size\": 4096", "\"vocab_size\": 4097"}, "vocab_size is 4097, but the target's is 4096"},
      {{"\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2"}, "num_hidden_layers: only 1 is supported, found 2"},
      {{"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3"}, "not a multiple"},
      {{"\"head_dim\": 64", "\"head_dim\": 63"}, "head_dim 63 is odd"},
      {{"\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\""}, "hidden_act: only \"silu\" is supported"},
      {{"\"draft_vocab_size\": 2048", "\"draft_vocab_size\": 5000"}, "draft_vocab_size 5000 is larger"},
      {{"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 0"}, "rms_norm_eps: expected a number above 0"},
      {{"\"use_aux_hidden_state\": true", "\"use_aux_hidden_state\": false"}, "use_aux_hidden_state: only true"},
      {{"\"eagle_aux_hidden_state_layer_ids\": [", "\"eagle_aux_hidden_state_layer_ids\": [9,"}, "ascending"},
      {{"\"eagle_config\": {", "\"eagle_config\": 3, \"x\": {"}, "eagle_config: expected an object"},
      {{"{", "["}, "expected a JSON object"},
  };
  const std::string good = config_;
  for (const auto& [edit, message] : cases) {
    config_ = good;
    replace(edit.first, edit.second);
    EXPECT_THAT(error(), HasSubstr(message)) << edit.second;
  }
}

TEST_F(BadEagle3, ShapesAreCheckedAgainstTheConfig) {
  replace("\"intermediate_size\": 768", "\"intermediate_size\": 512");
  const std::string text = error();
  EXPECT_THAT(text, HasSubstr("midlayer.mlp.gate_proj.weight"));
  EXPECT_THAT(text, HasSubstr("[512, 256]")) << "expected";
  EXPECT_THAT(text, HasSubstr("[768, 256]")) << "found";
}

TEST_F(BadEagle3, EveryTensorIsNeeded) {
  const auto all = tensors_;
  for (const auto& [name, tensor] : all) {
    tensors_ = all;
    tensors_.erase(name);
    if (name == "t2d") {
      EXPECT_EQ(error(), "") << "t2d follows from d2t";
    } else {
      EXPECT_THAT(error(), HasSubstr(name));
    }
  }
}

TEST_F(BadEagle3, TheVocabularyMapIsUntrusted) {
  std::vector<int64_t> d2t = values_of<int64_t>(*file_, "d2t");
  const auto error_with = [&](size_t index, int64_t value) {
    std::vector<int64_t> changed = d2t;
    changed[index] = value;
    tensors_["d2t"].data = std::as_bytes(std::span(changed));
    return error();
  };
  EXPECT_THAT(error_with(5, -6), HasSubstr("d2t[5] = -6 leads outside the vocabulary"));
  EXPECT_THAT(error_with(5, 4091), HasSubstr("leads outside"));
  EXPECT_THAT(error_with(5, std::numeric_limits<int64_t>::max()), HasSubstr("leads outside"));
  EXPECT_THAT(error_with(5, std::numeric_limits<int64_t>::min()), HasSubstr("leads outside"));
  EXPECT_THAT(error_with(5, d2t[4] - 1), HasSubstr("a second time"));
}

TEST_F(BadEagle3, BiasesAreRefused) {
  const std::vector<uint16_t> zeros(kHidden, 0);
  tensors_["fc.bias"] = {"fc.bias", io::TensorType::kBF16, {kHidden}, std::as_bytes(std::span(zeros))};
  EXPECT_THAT(error(), HasSubstr("fc.bias"));
}

TEST_F(BadEagle3, FeatureLayersMustExist) {
  Eagle3Config config = *Eagle3Config::parse(config_, "config.json");
  EXPECT_THAT(*config.feature_layers(8), ::testing::ElementsAre(2, 4, 6));
  EXPECT_THAT(config.feature_layers(5).error(), HasSubstr("layer 6"));
  config.aux_layers.clear();
  EXPECT_THAT(*config.feature_layers(32), ::testing::ElementsAre(2, 16, 29));
  EXPECT_FALSE(config.feature_layers(4));
}

TEST_F(BadEagle3, AMissingDirectoryIsNamed) {
  EXPECT_THAT(Eagle3Drafter::load("/nowhere/at/all", target_, {}).error(), HasSubstr("/nowhere/at/all"));
}

}  // namespace
}  // namespace kda::speculation
