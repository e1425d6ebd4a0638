// kda plan: bytes against values worked out by hand, every known model on many machines, refusals with their codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/program.h"

namespace kda::cli::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

const std::vector<std::string> kTree = {"--speculative-num-steps",        "3", "--speculative-eagle-topk", "4",
                                        "--speculative-num-draft-tokens", "16"};

struct Answer {
  int exit_code;
  Json json;
  std::string err;
};

Answer ask(std::vector<std::string> options) {
  options.insert(options.begin(), {"plan", "--json"});
  const ProgramResult result = run_kda(options);
  return {result.exit_code, Json::parse(result.out, nullptr, /*allow_exceptions=*/false), result.err};
}
Answer ask(std::vector<std::string> options, const std::vector<std::string>& more) {
  options.insert(options.end(), more.begin(), more.end());
  return ask(std::move(options));
}

const Json& phase(const Json& plan, const std::string& name) {
  static const Json none;
  for (const Json& one : plan["phases"])
    if (one["phase"] == name) return one;
  return none;
}

// 20 KDA layers, 32 heads of 128 x 128, a window of 3 tokens and 3 * 32 * 128 channels in bf16.
TEST(Plan, BytesOfKimiLinear) {
  const Answer fp32 = ask({"--model", "Kimi-Linear-48B-A3B", "--gpu", "h200"}, kTree);
  ASSERT_EQ(fp32.exit_code, 0) << fp32.err;
  const Json& bytes = fp32.json["bytes"];
  EXPECT_EQ(bytes["state of a sequence"], 20.0 * 32 * 128 * 128 * 4);
  EXPECT_EQ(bytes["conv window of a sequence"], 20.0 * 3 * 3 * 32 * 128 * 2);
  EXPECT_EQ(bytes["a state per node instead"], 16 * 20.0 * 32 * 128 * 128 * 4);
  // A node and head keeps the correction (128 fp32), the key (128 bf16), the decay (128 fp32) and little else.
  const double node_and_head = bytes["records of a sequence"].get<double>() / 20 / 16 / 32;
  EXPECT_GE(node_and_head, 128 * 4 + 128 * 2 + 128 * 4);
  EXPECT_LE(node_and_head, 1312);
  const double sum = bytes["state of a sequence"].get<double>() + bytes["conv window of a sequence"].get<double>() +
                     bytes["records of a sequence"].get<double>();
  EXPECT_EQ(bytes["a sequence, all together"], sum);
  EXPECT_EQ(fp32.json["sequences"]["fit"], std::floor(141 * 0.9 * 1024 * 1024 * 1024 / sum));
  EXPECT_EQ(fp32.json["draft_nodes"], 16);

  const Answer bf16 =
      ask({"--model", "Kimi-Linear-48B-A3B", "--gpu", "h200", "--state-dtype", "bf16", "--tensor-parallel", "8"});
  ASSERT_EQ(bf16.exit_code, 0) << bf16.err;
  EXPECT_EQ(bf16.json["bytes"]["state of a sequence"], 20.0 * 4 * 128 * 128 * 2);
  EXPECT_EQ(bf16.json["bytes"]["conv window of a sequence"], 20.0 * 3 * 3 * 4 * 128 * 2);
  EXPECT_EQ(bf16.json["bytes"]["records of a sequence"], 0);

  const Answer memory = ask({"--model", "Kimi-Linear-48B-A3B", "--gpu", "h200", "--memory-gib", "1"});
  EXPECT_EQ(memory.json["sequences"]["fit"], std::floor(1024.0 * 1024 * 1024 / (41943040.0 + 1474560)));
  EXPECT_EQ(memory.json["sequences"]["basis"], "--memory-gib");
}

// What a phase has to move, for one layer: 32 rows of 32 heads.
TEST(Plan, BytesAndTimesOfPhases) {
  const Answer answer = ask({"--model", "Kimi-Linear-48B-A3B", "--gpu", "h200", "--batch", "32"}, kTree);
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const double state = 32 * 128 * 128 * 4, token = 2.0 * (2 * 32 * 128 + 32 * 3 * 128),
               record = answer.json["bytes"]["records of a sequence"].get<double>() / 20;
  EXPECT_DOUBLE_EQ(phase(answer.json, "decode")["bytes_per_layer"].get<double>(), 32 * (2 * state + token));
  EXPECT_DOUBLE_EQ(phase(answer.json, "verify")["bytes_per_layer"].get<double>(), 32 * (state + 16 * token + record));
  EXPECT_DOUBLE_EQ(phase(answer.json, "commit")["bytes_per_layer"].get<double>(), 32 * (2 * state + record));
  // At the measured rate of a copy plus a launch: 2 us + bytes / 3730 GB/s.
  EXPECT_NEAR(phase(answer.json, "decode")["expected_us_per_layer"].get<double>(),
              2 + 32 * (2 * state + token) / 3730e3, 0.5);
  EXPECT_THAT(answer.json["cost_model"].get<std::string>(), HasSubstr("H200"));
  EXPECT_THAT(answer.json["cost_model"].get<std::string>(), Not(HasSubstr("not measured there")));
  const Answer scaled = ask({"--model", "Kimi-Linear-48B-A3B", "--gpu", "a100", "--batch", "32"});
  EXPECT_THAT(scaled.json["cost_model"].get<std::string>(), HasSubstr("not measured there"));
  EXPECT_NEAR(phase(scaled.json, "decode")["expected_us_per_layer"].get<double>(),
              2 + 32 * (2 * state + token) / (3730e3 * 2039 / 4800), 0.5);
}

TEST(Plan, EveryModelOnEveryMachine) {
  struct Machine {
    const char* name;
    const char* backend;
    bool bandwidth;
  };
  const Machine machines[] = {{"h200", "cuda", true},    {"a100", "cuda", true},   {"b200", "cuda", true},
                              {"rtx4090", "cuda", true}, {"sm_90", "cuda", false}, {"v100", "cpu", true},
                              {"mi300x", "cpu", true},   {"cpu", "cpu", true}};
  for (const char* model : {"Kimi-Linear-48B-A3B", "Kimi-K3", "Ling-3.0-flash", "GLM-5.3-Flash"}) {
    for (const Machine& machine : machines) {
      for (const bool speculation : {false, true}) {
        for (const char* dtype : {"fp32", "bf16"}) {
          SCOPED_TRACE(std::string(model) + " " + machine.name + " " + dtype + (speculation ? " tree" : ""));
          const Answer answer =
              ask({"--model", model, "--gpu", machine.name, "--state-dtype", dtype, "--tensor-parallel", "2"},
                  speculation ? kTree : std::vector<std::string>{});
          ASSERT_EQ(answer.exit_code, 0) << answer.err;
          EXPECT_EQ(answer.json["backend"], machine.backend);
          EXPECT_EQ(answer.json["phases"].size(), speculation ? 5u : 2u);
          EXPECT_GT(answer.json["layers"].get<int>(), 0);
          for (const Json& one : answer.json["phases"]) {
            int taken = 0;
            for (const Json& candidate : one["candidates"]) {
              taken += candidate["taken"].get<bool>() ? 1 : 0;
              EXPECT_FALSE(candidate["reason"].get<std::string>().empty()) << candidate.dump();
            }
            EXPECT_EQ(taken, 1) << one.dump();
            EXPECT_EQ(one["kernel"].get<std::string>().rfind(machine.backend, 0), 0u) << one["kernel"];
            EXPECT_GT(one["bytes_per_layer"].get<double>(), 0);
            EXPECT_EQ(one["expected_us_per_layer"].is_number(), machine.bandwidth) << one.dump();
          }
        }
      }
    }
  }
}

// The same arithmetic with and without the backend's code in the build.
TEST(Plan, WorkspaceOfADescribedGpu) {
  const auto workspace = [](const std::vector<std::string>& more) {
    const Answer answer = ask({"--model", "Kimi-Linear-48B-A3B", "--gpu", "h200"}, more);
    EXPECT_EQ(answer.exit_code, 0) << answer.err;
    return answer.json["bytes"]["workspace of a call"].get<double>();
  };
  // Room for the lists of the largest move: two of 3072 entries of 8 bytes.
  constexpr double kLists = 2 * 3072 * 8;
  EXPECT_EQ(workspace({}), kLists);
  // 512 / 16 + 1 chunks: a number each, rounded up to 256 bytes, and for each head a packet of three 16 x 128 matrices
  // in 16 bits, two triangles of three 8 x 8 tiles in fp32 and 128 decays in fp32.
  constexpr double kPacket = 3 * 16 * 128 * 2 + 2 * 3 * 64 * 4 + 128 * 4;
  EXPECT_EQ(workspace({"--numerics", "fast"}), 256 + 33 * 32 * kPacket + kLists);
}

TEST(Plan, RefusalsAreAnswersWithTheirCode) {
  const auto refused = [](const std::vector<std::string>& more) {
    const Answer answer = ask({"--model", "Kimi-Linear-48B-A3B"}, more);
    EXPECT_EQ(answer.exit_code, 1) << answer.err;
    return answer.json.is_object() ? answer.json.value("refused", "") : "no JSON";
  };
  EXPECT_EQ(refused({"--gpu", "v100", "--backend", "cuda"}), "KDA-3008");
  EXPECT_EQ(refused({"--gpu", "cpu", "--backend", "cuda"}), "KDA-3006");
  EXPECT_EQ(refused({"--gpu", "h200", "--kernels", "decode=nosuch"}), "KDA-3004");
  EXPECT_EQ(refused({"--gpu", "h200", "--backend", "cuda", "--kernels", "decode=cpu_decode_exact"}), "KDA-3005");
  // A forced kernel is taken, and the whole plan goes where it is.
  const Answer forced =
      ask({"--model", "Kimi-Linear-48B-A3B", "--gpu", "h200", "--kernels", "decode=reference_decode"});
  ASSERT_EQ(forced.exit_code, 0) << forced.err;
  EXPECT_EQ(forced.json["backend"], "reference");
  EXPECT_EQ(phase(forced.json, "decode")["kernel"], "reference_decode");
  const ProgramResult line = run_kda({"plan", "--model", "Kimi-Linear-48B-A3B", "--gpu", "cpu", "--backend", "cuda"});
  EXPECT_EQ(line.exit_code, 1);
  EXPECT_EQ(std::count(line.err.begin(), line.err.end(), '\n'), 1) << line.err;
  EXPECT_EQ(line.err.find("ay out", line.err.find("ay out") + 1), std::string::npos) << "two ways out: " << line.err;
}

TEST(Plan, WrongUseIsOneLine) {
  const auto wrong = [](const std::vector<std::string>& more, const char* text) {
    std::vector<std::string> words = {"plan"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result = run_kda(words);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr(text));
  };
  const char* model = "Kimi-Linear-48B-A3B";
  wrong({"--model", model, "--memory-gib", "-4"}, "--memory-gib: expected a number from");
  wrong({"--model", model, "--memory-gib", "0"}, "found '0'");
  wrong({"--model", model, "--batch", "ten"}, "expected a whole number from 1 to 1048576, found 'ten'");
  wrong({"--model", model, "--tensor-parallel", "3"}, "32 heads do not divide over 3 ranks");
  wrong({"--model", model, "--gpu", "h2000x"}, "h2000x");
  wrong({"--model", model, "--state-dtype", "fp8"}, "fp8");
  wrong({"--model", "no-such-model"}, "no-such-model");
  wrong({}, "model");
}

TEST(Plan, TableNamesWhatTheJsonNames) {
  std::vector<std::string> words = {"plan", "--model", "Kimi-K3", "--gpu", "h200", "--tensor-parallel", "8"};
  words.insert(words.end(), kTree.begin(), kTree.end());
  const ProgramResult table = run_kda(words);
  ASSERT_EQ(table.exit_code, 0) << table.err;
  for (const char* text : {"Kimi-K3 on H200 (described, not this machine)", "gate bounded", "verify_pending",
                           "cuda_decode", "state of a sequence", "sequences that fit", "times rest on:"})
    EXPECT_THAT(table.out, HasSubstr(text));
}

}  // namespace
}  // namespace kda::cli::testing
