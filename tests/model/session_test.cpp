// The whole model: against golden values of an independent program, and drafts against plain decoding bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "demo.h"
#include "io/safetensors.h"
#include "model/model.h"
#include "model/ops.h"

namespace kda::model {
namespace {

using testing::HasSubstr;

template <class T>
T must(io::Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error());
  return std::move(*result);
}

std::unique_ptr<Model> load_demo(ModelOptions options = {}) {
  options.feature_layers = {2, 4, 6};
  return must(Model::load(demo_directory(), options));
}

std::unique_ptr<Session> new_session(const Model& model) { return must(Session::create(model)); }

std::vector<float> copy(std::span<const float> values) { return {values.begin(), values.end()}; }

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN is kept
  }
  return largest;
}

struct Golden {
  std::vector<int32_t> ids, greedy;
  std::vector<float> logits, features;
};

template <class T>
std::vector<T> read(const io::SafetensorsFile& file, const std::string& name) {
  const io::TensorInfo* tensor = must(file.require(name));
  std::vector<T> values(static_cast<size_t>(tensor->elements));
  EXPECT_EQ(tensor->data.size(), values.size() * sizeof(T));
  std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
  return values;
}

std::vector<Golden> golden() {
  const auto file = must(io::SafetensorsFile::open(demo_directory() + "/golden.safetensors"));
  std::vector<Golden> all;
  for (int i = 0; i < 3; ++i) {
    const std::string prefix = "prompt" + std::to_string(i) + ".";
    all.push_back({read<int32_t>(file, prefix + "ids"), read<int32_t>(file, prefix + "greedy"),
                   read<float>(file, prefix + "logits"), read<float>(file, prefix + "aux")});
  }
  return all;
}

constexpr double kGoldenTolerance = 3e-4;  // of logits and features, absolute

void expect_golden(const Model& model) {
  for (const Golden& expected : golden()) {
    auto session = new_session(model);
    std::vector<float> logits, features;
    PrefillOptions options;
    options.all_logits = true;
    options.on_chunk = [&](const PrefillChunk& chunk) {
      logits.insert(logits.end(), chunk.logits.begin(), chunk.logits.end());
      features.insert(features.end(), chunk.features.begin(), chunk.features.end());
      return true;
    };
    RowsView row = must(session->prefill(expected.ids, options));
    EXPECT_LE(largest_difference(logits, expected.logits), kGoldenTolerance);
    EXPECT_LE(largest_difference(features, expected.features), kGoldenTolerance);
    EXPECT_EQ(session->length(), static_cast<int64_t>(expected.ids.size()));
    std::vector<int32_t> greedy;
    while (greedy.size() < expected.greedy.size()) {
      greedy.push_back(static_cast<int32_t>(argmax(row.logits.data(), static_cast<int64_t>(row.logits.size()))));
      row = must(session->step(greedy.back()));
    }
    EXPECT_EQ(greedy, expected.greedy);
  }
}

TEST(SessionTest, GoldenOnCpu) { expect_golden(*load_demo()); }
TEST(SessionTest, GoldenOnReference) { expect_golden(*load_demo({.backend = KDA_BACKEND_REFERENCE})); }
TEST(SessionTest, GoldenInSmallChunksOnOneThread) { expect_golden(*load_demo({.threads = 1, .prefill_chunk = 3})); }

std::vector<int32_t> random_tokens(std::mt19937& random, size_t count, int64_t vocab) {
  std::vector<int32_t> tokens(count);
  for (int32_t& t : tokens) t = std::uniform_int_distribution<int32_t>(0, static_cast<int32_t>(vocab) - 1)(random);
  return tokens;
}

// What exact numerics promise: however a prompt is cut, and whether it is stepped, the last row has the same bits.
TEST(SessionTest, ChunksAndStepsGiveTheSameBits) {
  std::mt19937 random(7);
  std::vector<int32_t> tokens;
  std::vector<float> logits, features;
  for (const int chunk : {256, 64, 7, 1}) {
    const auto model = load_demo({.threads = chunk % 3 + 1, .prefill_chunk = chunk});
    if (tokens.empty()) tokens = random_tokens(random, 100, model->config().vocab_size);
    auto session = new_session(*model);
    const RowsView row = must(session->prefill(tokens, {}));
    if (logits.empty()) {
      logits = copy(row.logits);
      features = copy(row.features);
    }
    EXPECT_TRUE(same_bits(row.logits, logits)) << "chunk " << chunk;
    EXPECT_TRUE(same_bits(row.features, features)) << "chunk " << chunk;
  }
  const auto model = load_demo();
  auto session = new_session(*model);
  RowsView row;
  for (int32_t token : tokens) row = must(session->step(token));
  EXPECT_TRUE(same_bits(row.logits, logits));
  EXPECT_TRUE(same_bits(row.features, features));
}

// Random drafts, random accepted nodes, round after round: every node's row has the bits of decoding its path.
void expect_drafts_equal_decoding(const ModelOptions& options, int rounds, int max_nodes) {
  const auto model = load_demo(options);
  std::mt19937 random(11);
  const int64_t vocab = model->config().vocab_size;
  auto draft = new_session(*model), plain = new_session(*model);
  std::vector<int32_t> sequence = random_tokens(random, 9, vocab);
  must(draft->prefill(sequence, {}));
  for (int round = 0; round < rounds; ++round) {
    const int nodes = std::uniform_int_distribution<int>(1, max_nodes)(random);
    const auto tokens = random_tokens(random, static_cast<size_t>(nodes), vocab);
    std::vector<int32_t> parents;
    for (int i = 0; i < nodes; ++i) {
      // Mostly deep trees, with several roots now and then.
      const int least = std::max(-1, i - 4);
      parents.push_back(i == 0 ? -1 : std::uniform_int_distribution<int>(least, i - 1)(random));
    }
    const RowsView rows = must(draft->verify(tokens, parents));
    ASSERT_EQ(rows.rows, nodes);
    const auto path_to = [&](int32_t node) {
      std::vector<int32_t> path;
      for (; node >= 0; node = parents[static_cast<size_t>(node)]) {
        path.insert(path.begin(), tokens[static_cast<size_t>(node)]);
      }
      return path;
    };
    // A few nodes a round: replaying every path costs much and says no more.
    for (int check = 0; check < 3; ++check) {
      const int node = std::uniform_int_distribution<int>(0, nodes - 1)(random);
      must(plain->reset());
      must(plain->prefill(sequence, {}));
      RowsView row;
      for (int32_t token : path_to(node)) row = must(plain->step(token));
      ASSERT_TRUE(same_bits(rows.logits_row(node), row.logits)) << "round " << round << " node " << node;
      ASSERT_TRUE(same_bits(rows.features_row(node), row.features)) << "round " << round << " node " << node;
    }
    const int tip = std::uniform_int_distribution<int>(-1, nodes - 1)(random);
    const auto accepted = path_to(tip);
    must(draft->accept(tip));
    sequence.insert(sequence.end(), accepted.begin(), accepted.end());
    ASSERT_EQ(draft->length(), static_cast<int64_t>(sequence.size()));
    if (round % 5 == 3) must(draft->flush());
    if (round % 7 == 6) {  // plain decoding between drafts
      const auto token = random_tokens(random, 1, vocab);
      must(draft->step(token[0]));
      sequence.push_back(token[0]);
    }
  }
}

TEST(SessionTest, DraftsEqualDecodingOnCpu) { expect_drafts_equal_decoding({.threads = 2}, 30, 33); }
TEST(SessionTest, DraftsEqualDecodingOnOneThread) { expect_drafts_equal_decoding({.threads = 1}, 8, 64); }
TEST(SessionTest, DraftsEqualDecodingOnReference) {
  expect_drafts_equal_decoding({.backend = KDA_BACKEND_REFERENCE}, 4, 12);
}

TEST(SessionTest, VerifyWithoutAcceptIsForgotten) {
  const auto model = load_demo();
  auto session = new_session(*model), other = new_session(*model);
  const std::vector<int32_t> prompt{3840, 5, 6}, draft{7, 8, 9}, parents{-1, 0, 0};
  must(session->prefill(prompt, {}));
  must(session->verify(draft, parents));
  must(session->accept(2));  // pending when the next draft comes
  must(session->verify(draft, parents));
  const RowsView row = must(session->step(4));
  must(other->prefill(std::vector<int32_t>{3840, 5, 6, 7, 9}, {}));
  EXPECT_TRUE(same_bits(row.logits, must(other->step(4)).logits));
  EXPECT_EQ(session->length(), 6);
}

// Drafts on an empty sequence: the first tokens may come from a draft as well.
TEST(SessionTest, DraftsFromTheStart) {
  const auto model = load_demo();
  auto session = new_session(*model), other = new_session(*model);
  must(session->verify(std::vector<int32_t>{3840, 5, 6}, std::vector<int32_t>{-1, 0, 1}));
  must(session->accept(1));
  const RowsView row = must(session->verify(std::vector<int32_t>{9}, std::vector<int32_t>{-1}));
  must(other->prefill(std::vector<int32_t>{3840, 5}, {}));
  EXPECT_TRUE(same_bits(row.logits, must(other->step(9)).logits));
}

TEST(SessionTest, InterruptedPrefillEndsWithItsChunk) {
  const auto model = load_demo({.prefill_chunk = 4});
  auto session = new_session(*model);
  const std::vector<int32_t> tokens(10, 42);
  PrefillOptions options;
  std::vector<int64_t> done;
  options.on_chunk = [&](const PrefillChunk& chunk) {
    EXPECT_EQ(chunk.total, 10);
    done.push_back(chunk.done);
    return chunk.done < 8;
  };
  EXPECT_EQ(must(session->prefill(tokens, options)).rows, 0);
  EXPECT_THAT(done, testing::ElementsAre(4, 8));
  EXPECT_EQ(session->length(), 8);
  EXPECT_EQ(must(session->prefill({}, {})).rows, 0);
  EXPECT_EQ(must(session->step(42)).rows, 1);
}

TEST(SessionTest, RefusesBadArgumentsAndStaysUsable) {
  const auto model = load_demo({.max_nodes = 4});
  auto session = new_session(*model);
  const std::vector<int32_t> ok{1}, root{-1};
  EXPECT_THAT(session->step(4096).error(), HasSubstr("expected an id from 0 to 4095, found 4096"));
  EXPECT_THAT(session->step(-1).error(), HasSubstr("found -1"));
  EXPECT_THAT(session->prefill(std::vector<int32_t>{1, 99999}, {}).error(), HasSubstr("token 1"));
  EXPECT_THAT(session->verify({}, {}).error(), HasSubstr("1 to 4"));
  EXPECT_THAT(session->verify(std::vector<int32_t>(5, 1), std::vector<int32_t>(5, -1)).error(), HasSubstr("1 to 4"));
  EXPECT_THAT(session->verify(ok, {}).error(), HasSubstr("0 parents"));
  EXPECT_THAT(session->verify(std::vector<int32_t>{1, 2}, std::vector<int32_t>{-1, 1}).error(), HasSubstr("node 1"));
  EXPECT_THAT(session->verify(ok, std::vector<int32_t>{-2}).error(), HasSubstr("found -2"));
  EXPECT_THAT(session->accept(0).error(), HasSubstr("0 nodes"));
  must(session->verify(ok, root));
  EXPECT_THAT(session->accept(1).error(), HasSubstr("1 nodes"));
  must(session->accept(0));
  EXPECT_THAT(session->accept(0).error(), HasSubstr("0 nodes"));
  EXPECT_EQ(session->length(), 1);
  EXPECT_EQ(must(session->step(1)).rows, 1);
}

TEST(ModelTest, RefusesBadOptions) {
  const auto error = [](ModelOptions options) {
    auto model = Model::load(demo_directory(), options);
    return model.ok() ? std::string() : model.error();
  };
  EXPECT_THAT(error({.backend = KDA_BACKEND_CUDA}), HasSubstr("cpu and reference"));
  EXPECT_THAT(error({.threads = -1}), HasSubstr("threads"));
  EXPECT_THAT(error({.prefill_chunk = 0}), HasSubstr("chunk"));
  EXPECT_THAT(error({.max_nodes = 65}), HasSubstr("1 to 64"));
  EXPECT_THAT(error({.feature_layers = {4, 2}}), HasSubstr("feature layer 2"));
  EXPECT_THAT(error({.feature_layers = {9}}), HasSubstr("from 0 to 8"));
}

// A token touches 13.1 MB of the built-in model.
TEST(ModelTest, CountsTheBytesOfAToken) {
  EXPECT_NEAR(static_cast<double>(load_demo()->bytes_per_token()), 13.1e6, 0.1e6);
}

}  // namespace
}  // namespace kda::model
