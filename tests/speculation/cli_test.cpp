// kda generate as a program: options, exit codes, JSON, standard input, Ctrl-C.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "demo_model.h"
#include "io/file.h"

namespace kda::speculation {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using Json = nlohmann::json;

struct Outcome {
  int exit_code = -1;
  std::string out, err;
};

class GenerateCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    KDA_NEEDS_DEMO_MODEL();
    folder_ = std::filesystem::path(::testing::TempDir()) /
              (std::string("kda_generate_") + ::testing::UnitTest::GetInstance()->current_test_info()->name() + "_" +
               std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    model_ = demo_directory();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Starts kda generate; standard input is `input`.
  pid_t start(const std::vector<std::string>& arguments, const std::string& input = "") {
    std::ofstream(folder_ / "in") << input;
    std::vector<std::string> words{std::string(KDA_BINARY_DIR) + "/cli/kda", "generate"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::string in = folder_ / "in", out = folder_ / "out", err = folder_ / "err";
    const pid_t child = fork();
    if (child == 0) {
      setenv("KDA_MODEL_DIR", model_.c_str(), 1);
      if (std::freopen(in.c_str(), "r", stdin) == nullptr || std::freopen(out.c_str(), "w", stdout) == nullptr ||
          std::freopen(err.c_str(), "w", stderr) == nullptr) {
        _exit(126);
      }
      execv(argv[0], argv.data());
      _exit(127);
    }
    return child;
  }

  Outcome finish(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    Outcome outcome;
    if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
    outcome.out = *io::read_file(folder_ / "out");
    outcome.err = *io::read_file(folder_ / "err");
    return outcome;
  }

  Outcome kda(const std::vector<std::string>& arguments, const std::string& input = "") {
    return finish(start(arguments, input));
  }

  std::filesystem::path folder_;
  std::string model_;  // what KDA_MODEL_DIR says
};

TEST_F(GenerateCommand, JsonHoldsTheGoldenTokens) {
  const io::SafetensorsFile golden = std::move(*io::SafetensorsFile::open(demo_directory() + "/golden.safetensors"));
  const Json texts = Json::parse(*io::read_file(demo_directory() + "/golden.json"));
  for (int i = 0; i < 3; ++i) {
    const std::string name = "prompt" + std::to_string(i);
    const std::string prompt = texts["prompts"][i];
    const Outcome outcome = kda({"--json", "--max-new-tokens", "48", "--prompt", prompt});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Json report = Json::parse(outcome.out);
    EXPECT_EQ(report["prompt_tokens"], values_of<int32_t>(golden, name + ".ids"));
    EXPECT_EQ(report["output_tokens"], values_of<int32_t>(golden, name + ".greedy"));
    EXPECT_EQ(report["finish"], "length");
    EXPECT_FALSE(report["text"].get<std::string>().empty());
    const Json& stats = report["stats"];
    EXPECT_EQ(stats["algorithm"], "EAGLE3");
    EXPECT_DOUBLE_EQ(stats["tokens_per_round"].get<double>(), 48.0 / stats["verify_rounds"].get<double>());
    EXPECT_GT(stats["tokens_per_second"].get<double>(), 0);
    for (const char* key : {"draft_seconds", "verify_seconds", "commit_seconds", "accepted_length"}) {
      EXPECT_TRUE(stats[key].is_number()) << key;
    }
    for (const char* phase : {"prefill", "decode"}) {
      EXPECT_GT(stats[phase]["tokens"].get<int64_t>(), 0);
      EXPECT_GT(stats[phase]["seconds"].get<double>(), 0);
    }
  }
}

TEST_F(GenerateCommand, PromptsFromStdinAndFilesAreTheSame) {
  const std::string text = "import os\n\ndef main():\n    ";
  std::ofstream(folder_ / "prompt") << text;
  const Json named = Json::parse(kda({"--json", "--max-new-tokens", "4", "--prompt", text}).out);
  const Json piped = Json::parse(kda({"--json", "--max-new-tokens", "4"}, text).out);
  const Json read = Json::parse(kda({"--json", "--max-new-tokens", "4", "--prompt-file", folder_ / "prompt"}).out);
  EXPECT_EQ(named["prompt_tokens"], piped["prompt_tokens"]);
  EXPECT_EQ(named["prompt_tokens"], read["prompt_tokens"]);
  EXPECT_EQ(named["output_tokens"], piped["output_tokens"]);
}

TEST_F(GenerateCommand, TextIsTheOnlyThingOnStdout) {
  const Json report = Json::parse(kda({"--json", "--max-new-tokens", "24", "--prompt", "CREATE TABLE"}).out);
  for (const char* algorithm : {"EAGLE3", "ngram", "None"}) {
    const Outcome outcome =
        kda({"--max-new-tokens", "24", "--prompt", "CREATE TABLE", "--speculative-algorithm", algorithm});
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.out, report["text"].get<std::string>() + "\n") << algorithm;
    EXPECT_THAT(outcome.err, HasSubstr("24 tokens at"));
    EXPECT_EQ(outcome.err.find('\r'), std::string::npos) << "a progress bar outside a terminal";
  }
}

TEST_F(GenerateCommand, WithoutRoundsThereAreNoTokensARound) {
  const Json stats = Json::parse(
      kda({"--json", "--max-new-tokens", "3", "--prompt", "x", "--speculative-algorithm", "NONE"}).out)["stats"];
  EXPECT_EQ(stats["verify_rounds"], 0);
  EXPECT_TRUE(stats["tokens_per_round"].is_null());
}

TEST_F(GenerateCommand, DemonstrationShowsThatTokensAreEqual) {
  const Outcome outcome = kda({"--demonstrate", "--max-new-tokens", "32"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("The :func:`sorted` function returns"));
  EXPECT_THAT(outcome.out, HasSubstr("Identical: all 32 tokens"));
  EXPECT_LE(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 40) << "more than a screen";
  const Json report = Json::parse(kda({"--demonstrate", "--max-new-tokens", "32", "--json"}).out);
  EXPECT_EQ(report["identical"], true);
  EXPECT_EQ(report["speculative"]["output_tokens"], report["plain"]["output_tokens"]);
}

TEST_F(GenerateCommand, CtrlCPrintsWhatThereIs) {
  const Json whole = Json::parse(kda({"--json", "--max-new-tokens", "8", "--prompt", "x", "--ignore-eos"}).out);
  const pid_t child = start({"--json", "--max-new-tokens", "1000000", "--prompt", "x", "--ignore-eos"});
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  kill(child, SIGINT);
  const Outcome outcome = finish(child);
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  const Json report = Json::parse(outcome.out, nullptr, false);
  ASSERT_TRUE(report.is_object()) << outcome.out;
  EXPECT_EQ(report["finish"], "interrupted");
  const std::vector<int32_t> tokens = report["output_tokens"], beginning = whole["output_tokens"];
  ASSERT_GE(tokens.size(), beginning.size()) << "too slow a machine for this test's pause";
  EXPECT_TRUE(std::equal(beginning.begin(), beginning.end(), tokens.begin()));
}

TEST_F(GenerateCommand, WrongUseIsOneLineAndExit2) {
  const std::string empty = folder_ / "empty";
  std::filesystem::create_directories(empty);
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--speculative-algorithm", "NONE", "--speculative-eagle-topk", "4"}, "--speculative-eagle-topk has no meaning"},
      {{"--model", demo_directory(), "--speculative-num-steps", "4"}, "--speculative-num-steps has no meaning"},
      {{"--speculative-num-draft-tokens", "65"}, "expected a whole number from 2 to 64, found '65'"},
      {{"--speculative-num-draft-tokens", "1"}, "expected a whole number from 2 to 64, found '1'"},
      {{"--speculative-num-steps", "0"}, "--speculative-num-steps: expected a whole number from 1 to 63, found '0'"},
      {{"--speculative-eagle-topk", "x"}, "--speculative-eagle-topk"},
      {{"--speculative-algorithm", "EAGLE"}, "none of NONE, EAGLE3, NGRAM"},
      {{"--speculative-algorithm", "NGRAM", "--speculative-draft-model-path", empty}, "no meaning with NGRAM"},
      {{"--speculative-draft-model-path", empty}, "no draft model in"},
      {{"--speculative-draft-model-path", demo_directory()}, "num_hidden_layers: only 1"},
      {{"--model", empty}, "no model in"},
      {{"--model", demo_directory() + "/eagle3", "--speculative-algorithm", "EAGLE3"}, "needs a draft model"},
      {{"--prompt", "a", "--prompt-file", "b"}, "--prompt"},
      {{"--prompt-file", folder_ / "absent"}, "absent"},
      {{"--temperature", "-1"}, "--temperature"},
      {{"--temperature", "nan"}, "--temperature"},
      {{"--top-p", "0"}, "--top-p"},
      {{"--top-k", "-1"}, "--top-k"},
      {{"--max-new-tokens", "-1"}, "--max-new-tokens"},
      {{"--top-k", "5"}, "--top-k has no meaning at --temperature 0"},
      {{"--top-p", "0.5"}, "--top-p has no meaning at --temperature 0"},
      {{"--top-k", "x", "--temperature", "1"}, "--top-k: expected a whole number from 0 to"},
      {{"--seed", "-1"}, "--seed: expected a whole number from 0 to"},
      {{"--seed", "x"}, "found 'x'"},
      {{"--max-new-tokens", "x"}, "--max-new-tokens: expected a whole number from 0 to 4294967296, found 'x'"},
      {{"--model", ""}, "--model: expected a value, found none"},
      {{"--backend", "tpu"}, "none of cpu, reference"},
      {{"--backend", "cuda"}, "--backend cuda is not served"},
      {{"--numerics", "loose"}, "none of exact, fast"},
      {{"--demonstrate", "--speculative-algorithm", "NONE"}, "--demonstrate"},
      {{"--no-such-option"}, "--no-such-option"},
  };
  for (const auto& [arguments, message] : cases) {
    const Outcome outcome = kda(arguments, "x");
    EXPECT_EQ(outcome.exit_code, 2) << message;
    EXPECT_EQ(outcome.out, "") << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

TEST_F(GenerateCommand, AMissingBuiltInModelNamesTheWayOut) {
  model_ = folder_;
  const Outcome outcome = kda({"--prompt", "x"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("way out: tools/unpack-demo-model models/demo"));
}

}  // namespace
}  // namespace kda::speculation
