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
  // A kernel of another backend than the named GPU's is refused, and never moves the plan there.
  for (const char* gpu : {"h200", "v100", "mi300x"})
    for (const char* kernel : {"decode=cpu_decode_exact", "decode=reference_decode", "move=cpu_move"})
      EXPECT_EQ(refused({"--gpu", gpu, "--kernels", kernel}), "KDA-3005") << gpu << " " << kernel;
  EXPECT_EQ(refused({"--speculative-num-steps", "64"}), "KDA-3002");
  EXPECT_EQ(refused({"--speculative-num-draft-tokens", "65"}), "KDA-3002");
  const ProgramResult line = run_kda({"plan", "--model", "Kimi-Linear-48B-A3B", "--gpu", "cpu", "--backend", "cuda"});
  EXPECT_EQ(line.exit_code, 1);
  EXPECT_EQ(std::count(line.err.begin(), line.err.end(), '\n'), 1) << line.err;
  EXPECT_EQ(line.err.find("ay out", line.err.find("ay out") + 1), std::string::npos) << "two ways out: " << line.err;
}

// A plan that does not run on the GPU asked about says so, and counts host memory.
TEST(Plan, PlansForTheCpuAreCalledSo) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--gpu", "h200", "--backend", "cpu"}, "not for H200: --backend cpu"},
      {{"--gpu", "h200", "--backend", "reference"}, "not for H200: --backend reference"},
      {{"--gpu", "sm_70"}, "not for sm_70: cuda_extend: "},
      {{"--gpu", "v100"}, "not for V100: cuda_extend: "},
      {{"--gpu", "mi300x"}, "libkda has no kernels for MI300X"},
      {{"--gpu", "cpu"}, nullptr},
      {{"--gpu", "cpu", "--kernels", "decode=cpu_decode_exact"}, nullptr}};
  for (const auto& [more, note] : cases) {
    const Answer answer = ask({"--model", "Kimi-Linear-48B-A3B"}, more);
    SCOPED_TRACE(more[1] + (note != nullptr ? note : ""));
    ASSERT_EQ(answer.exit_code, 0) << answer.err;
    EXPECT_EQ(answer.json["machine"], "cpu");
    EXPECT_EQ(answer.json["described"], false);
    EXPECT_THAT(answer.json["sequences"]["basis"].get<std::string>(), HasSubstr("host memory"));
    ASSERT_EQ(answer.json["notes"].size(), note != nullptr ? 1u : 0u) << answer.json["notes"];
    if (note != nullptr) {
      EXPECT_THAT(answer.json["notes"][0].get<std::string>(), HasSubstr(note));
    }
  }
  const ProgramResult table = run_kda({"plan", "--model", "Kimi-K3", "--gpu", "v100"});
  EXPECT_THAT(table.out, HasSubstr("Kimi-K3 on cpu:"));
  EXPECT_THAT(table.out, HasSubstr("a plan for the CPU and host memory, not for V100"));
  EXPECT_EQ(ask({"--model", "Kimi-Linear-48B-A3B", "--gpu", "h200"}).json["notes"].size(), 0u);
  for (const char* name : {"NVIDIA H200", "nvidia h200"})
    EXPECT_EQ(ask({"--model", "Kimi-Linear-48B-A3B", "--gpu", name}).json["machine"], "H200");
  // Nothing is known of this GPU's memory, and no other machine's stands in for it.
  EXPECT_TRUE(ask({"--model", "Kimi-Linear-48B-A3B", "--gpu", "sm_90"}).json["sequences"]["fit"].is_null());
}

TEST(Plan, ReferenceKernelsHaveNoTimes) {
  const Answer answer = ask({"--model", "Kimi-Linear-48B-A3B", "--gpu", "cpu", "--backend", "reference"}, kTree);
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  for (const Json& one : answer.json["phases"]) EXPECT_TRUE(one["expected_us_per_layer"].is_null()) << one.dump();
  EXPECT_THAT(answer.json["cost_model"].get<std::string>(), HasSubstr("not timed"));
}

TEST(Plan, DraftsSayTheirNodesAndWhy) {
  struct Draft {
    std::vector<std::string> options;
    int nodes;
    const char* rule;
  };
  const auto draft = [](const char* steps, const char* topk, const char* tokens) {
    std::vector<std::string> words = {"--model", "Kimi-Linear-48B-A3B", "--gpu", "h200"};
    const auto add = [&](const char* name, const char* value) {
      if (value != nullptr) words.insert(words.end(), {name, value});
    };
    add("--speculative-num-steps", steps);
    add("--speculative-eagle-topk", topk);
    add("--speculative-num-draft-tokens", tokens);
    return words;
  };
  const Draft drafts[] = {
      {draft(nullptr, nullptr, "16"), 16, "a chain"},
      {draft(nullptr, "1", "64"), 64, "a chain"},
      {draft("1", nullptr, "16"), 2, "one node a step and the root; 16 were asked for"},
      {draft("3", "1", nullptr), 4, "one node a step"},
      {draft("3", "4", "16"), 16, "as asked"},
      {draft("3", "4", nullptr), 13, "--speculative-num-draft-tokens sets it"},
      {draft("3", "4", "100"), 37, "3 steps of top-k 4 make at most 37 nodes; 100 were asked for"},
      {draft("1", "4", "16"), 5, "1 step of top-k 4 make at most 5 nodes; 16 were asked for"},
  };
  for (const Draft& one : drafts) {
    const Answer answer = ask(one.options);
    ASSERT_EQ(answer.exit_code, 0) << answer.err;
    EXPECT_EQ(answer.json["draft_nodes"], one.nodes);
    EXPECT_THAT(answer.json["draft_rule"].get<std::string>(), HasSubstr(one.rule));
    std::vector<std::string> words = one.options;
    words.insert(words.begin(), "plan");
    EXPECT_THAT(run_kda(words).out, HasSubstr("draft of " + std::to_string(one.nodes) + " nodes (" +
                                              answer.json["draft_rule"].get<std::string>() + ")"));
  }
}

TEST(Plan, ABatchThatDoesNotFitIsNoAnswer) {
  const std::vector<std::string> base = {"plan", "--model", "Kimi-Linear-48B-A3B", "--gpu", "h200", "--memory-gib"};
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return run_kda(more);
  };
  const ProgramResult none = plan({"0.001"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("a batch of 1 does not fit: 0 of"));
  EXPECT_EQ(std::count(none.err.begin(), none.err.end(), '\n'), 1);
  EXPECT_THAT(none.out, HasSubstr("sequences that fit"));
  EXPECT_EQ(plan({"1", "--batch", "24"}).exit_code, 0);
  EXPECT_EQ(plan({"1", "--batch", "25"}).exit_code, 1);
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
  for (const char* spelling : {"--tensor-parallel-size", "--tp-size", "--tp"}) {  // the engines' names
    wrong({"--model", model, spelling, "3"}, "32 heads do not divide over 3 ranks");
  }
  wrong({"--model", model, "--gpu", "h2000x"}, "h2000x");
  for (const char* gpu : {"sm_99999", "sm_210", "sm_9"})
    wrong({"--model", model, "--gpu", gpu}, ": no such compute capability; expected one such as sm_90");
  for (const char* number : {"0x10", "010", "1e2", "+4", " 4", "4 ", "4.0", "", "1_000", "99999999999999999999"})
    wrong({"--model", model, "--batch", number}, "--batch: expected a");
  for (const char* number : {"0x10", "nan", "inf", "+4", "1,5", "1e400"})
    wrong({"--model", model, "--memory-gib", number}, "--memory-gib: expected a number");
  wrong({"--model", model, "--speculative-eagle-topk", "4"}, "without --speculative-num-steps");
  wrong({"--model", model, "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "16"},
        "without --speculative-num-steps");
  wrong({"--model", model, "--kernels", "verify=cuda_verify"}, "without a draft");
  wrong({"--model", model, "--gpu", ""}, "--gpu: expected a value, found none");
  wrong({"--model", model, "--gpu=", "h200"}, "--gpu=: expected a value, found none");
  wrong({"--model", model, "--state-dtype", "fp8"}, "fp8");
  wrong({"--model", "no-such-model"}, "no-such-model");
  wrong({}, "model");
}

TEST(Plan, ConfigsOfAnybody) {
  struct Config {
    const char* attention;
    int exit_code;
    const char* text;
  };
  const Config configs[] = {
      {R"("num_heads":32,"head_dim":128,"short_conv_kernel_size":4,"kda_layers":[1,2])", 0, ""},
      {R"("num_heads":32,"head_dim":128,"short_conv_kernel_size":4,"kda_layers":[])", 2, "no layer is a KDA layer"},
      {R"("num_heads":32,"head_dim":128,"short_conv_kernel_size":4294967300,"kda_layers":[1])", 1, "conv_width"},
      {R"("num_heads":32,"head_dim":128,"short_conv_kernel_size":1e99,"kda_layers":[1])", 1, "conv_width"},
      {R"("num_heads":32,"head_dim":128,"short_conv_kernel_size":-4,"kda_layers":[1])", 1, "conv_width"},
      {R"("num_heads":1e99,"head_dim":128,"kda_layers":[1])", 2, "heads"},
      {R"("num_heads":32,"head_dim":"128","kda_layers":[1])", 2, "head_dim"},
  };
  ScratchDirectory scratch;
  for (const Config& config : configs) {
    const std::string path =
        scratch.write("config.json", std::string(R"({"architectures":["KimiLinearForCausalLM"],)") +
                                         R"("linear_attn_config":{)" + config.attention + "}}");
    const ProgramResult result = run_kda({"plan", "--model-config", path, "--gpu", "h200"});
    EXPECT_EQ(result.exit_code, config.exit_code) << config.attention << result.err;
    EXPECT_THAT(result.err, HasSubstr(config.text));
  }
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
