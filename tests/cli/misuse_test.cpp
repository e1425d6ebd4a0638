// Wrong use: one clear line on stderr, exit code 2, nothing on stdout, nothing half-written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "cli/case_editor.h"
#include "cli/program.h"

namespace kda::cli::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Json = nlohmann::json;

const char kSmallCase[] = KDA_TEST_DATA "/own/conv-verify-tree.safetensors";
const char kDecodeCase[] = KDA_TEST_DATA "/own/decode-fp16-dst-fresh.safetensors";
const char kExtendCase[] = KDA_TEST_DATA "/own/extend-bounded-no-A-log-snapshots.safetensors";

void expect_one_line(const ProgramResult& result, const std::string& message) {
  EXPECT_EQ(result.exit_code, 2) << result.err << result.out;
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, StartsWith("kda"));
  EXPECT_THAT(result.err, HasSubstr(message));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST(Misuse, OptionsAndCommands) {
  expect_one_line(run_kda({}), "expected a command");
  expect_one_line(run_kda({"nothing"}), "unknown command 'nothing'");
  expect_one_line(run_kda({"--nothing"}), "unknown option '--nothing'");
  expect_one_line(run_kda({"info", "--nothing"}), "unknown option '--nothing'");
  expect_one_line(run_kda({"info", "more"}), "unknown argument 'more'");
  expect_one_line(run_kda({"info", "--threads"}), "--threads");
  expect_one_line(run_kda({"info", "--threads", "many"}), "many");
  expect_one_line(run_kda({"replay"}), "FILE is required");
  expect_one_line(run_kda({"replay", ""}), "expected a value, found none");
  expect_one_line(run_kda({"replay", "--out", "", kSmallCase}), "--out: expected a value, found none");
  expect_one_line(run_kda({"info", "--threads", "0x1"}), "expected a whole number from 0 to 1024, found '0x1'");
  expect_one_line(run_kda({"bench", "--seconds", "inf"}), "found 'inf'");
  expect_one_line(run_kda({"bench", "--dim", "0128"}), "found '0128'");
  expect_one_line(run_kda({"bench", "--filter", ""}), "--filter: expected a value, found none");
  expect_one_line(run_kda({"generate", "--max-new-tokens", "1e3"}), "found '1e3'");
  expect_one_line(run_kda({"doctor", "vllm", "serve", "moonshotai/Kimi-K3", "--tensor-parallel-size", "8"}),
                  "put -- before the launch command");
  expect_one_line(run_kda({"replay", "--nothing"}), "unknown option '--nothing'");
  expect_one_line(run_kda({"replay", "--numerics", "sloppy", kSmallCase}), "sloppy");
  expect_one_line(run_kda({"replay", "--backend", "gpu", kSmallCase}), "gpu");
  expect_one_line(run_kda({"replay", "--threads", "-1", kSmallCase}), "--threads");
  expect_one_line(run_kda({"replay", "--target", "MMX", kSmallCase}), "MMX");
  expect_one_line(run_kda({"replay", "--target", "a\nb\x1b[31m", kSmallCase}), "\\x1b");
}

TEST(Misuse, EmptyValuesOfTheDoctorAreNotNothing) {
  const std::vector<std::string> launch = {"--", "vllm", "serve", "moonshotai/Kimi-K3", "--tensor-parallel-size", "8"};
  const auto doctor = [&](std::vector<std::string> options) {
    options.insert(options.begin(), "doctor");
    options.insert(options.end(), launch.begin(), launch.end());
    return run_kda(options);
  };
  for (const char* option :
       {"--gpu", "--engine-version", "--model-config", "--cuda-version", "--data", "--installed", "--missing"}) {
    SCOPED_TRACE(option);
    expect_one_line(doctor({option, ""}), option);
    expect_one_line(doctor({option, " "}), option);
  }
  expect_one_line(doctor({"--gpu", "h200", "--engine-version", "abc"}),
                  "expected a version such as 0.33.0, found 'abc'");
  expect_one_line(run_kda({"doctor", "--gpu", "h200"}), "command");
  expect_one_line(run_kda({"doctor", "--gpu", "h200", "--", " "}), "launch command is missing");
  expect_one_line(run_kda({"doctor", "--gpu", "h200", "--"}), "launch command is missing");
  EXPECT_EQ(doctor({"--gpu", "h200"}).exit_code, 0);
  // words reach the doctor as they are
  EXPECT_THAT(
      run_kda({"doctor", "--gpu", "h200", "--", "vllm", "serve", "moonshotai/Kimi-K3", "--speculative-config", "[]"})
          .out,
      HasSubstr("VLLM-CONFIG-OBJECT"));
  EXPECT_THAT(run_kda({"doctor", "--gpu", "h200", "--", "vllm", "serve", "moonshotai/Kimi-K3", "[1,2]", "--", "x"}).out,
              HasSubstr("unrecognized arguments: [1,2] x"));
  EXPECT_EQ(run_kda({"doctor", "--gpu", "h200", "vllm serve moonshotai/Kimi-K3 --tensor-parallel-size 8"}).exit_code,
            0);
  EXPECT_EQ(doctor({"--gpu", "h200", "--engine-version", "9.9"}).exit_code, 4);
}

TEST(Program, HelpNamesTheProgram) {
  for (const char* command : {"bench", "doctor", "explain", "generate", "info", "plan", "replay"}) {
    const ProgramResult result = run_kda({command, "--help"});
    if (result.exit_code != 0) continue;  // a command that this build does not have
    EXPECT_THAT(result.out, HasSubstr(std::string("Usage: kda ") + command)) << command;
  }
  EXPECT_THAT(run_kda({"--help"}).out, HasSubstr("Usage: kda "));
}

TEST(Misuse, FilesThatAreNoReplayFiles) {
  ScratchDirectory scratch;
  using io::testing::file_bytes;
  expect_one_line(run_kda({"replay", scratch.file("none")}), "cannot open");
  expect_one_line(run_kda({"replay", scratch.path()}), "found a directory");
  expect_one_line(run_kda({"replay", "/dev/null"}), "expected a regular file");
  expect_one_line(run_kda({"replay", scratch.write("empty", "")}), "found 0");
  expect_one_line(run_kda({"replay", scratch.write("text", "this is no safetensors file")}), "not a safetensors file");
  expect_one_line(run_kda({"replay", scratch.write("plain", file_bytes("{}", ""))}), "not a replay file");
  const std::string whole = contents(kSmallCase);
  expect_one_line(run_kda({"replay", scratch.write("cut", whole.substr(0, whole.size() - 1))}), "within the file's");
  expect_one_line(run_kda({"replay", scratch.write("long", whole + "x")}), "1 bytes more");
  // One bad file among good ones: nothing runs.
  expect_one_line(run_kda({"replay", kSmallCase, scratch.file("none")}), "cannot open");
}

struct BadCase {
  const char* path;
  std::function<void(EditableCase&)> edit;
  const char* message;
};

TEST(Misuse, CasesThatContradictThemselves) {
  const auto metadata = [](const char* key, const char* value) {
    return [=](EditableCase& replay) { replay.metadata[key] = value; };
  };
  const auto drop = [](const char* name) { return [=](EditableCase& replay) { replay.tensors.erase(name); }; };
  const auto index = [](const char* name, size_t i, int64_t value) {
    return [=](EditableCase& replay) { replay.tensors.at(name).set_index(i, value); };
  };
  const auto reshape = [](const char* name, io::Shape shape) {
    return [=](EditableCase& replay) { replay.tensors.at(name).shape = shape; };
  };
  const auto retype = [](const char* name, io::TensorType type) {
    return [=](EditableCase& replay) { replay.tensors.at(name).type = type; };
  };
  const auto rename = [](const char* name, const char* to) {
    return [=](EditableCase& replay) {
      replay.tensors[to] = replay.tensors.at(name);
      replay.tensors.erase(name);
    };
  };
  const BadCase cases[] = {
      {kSmallCase, metadata("kda.replay", "2"), "'kda.replay': expected 1"},
      {kSmallCase, metadata("kda.op", "train"), "'kda.op': expected extend|decode"},
      {kSmallCase, metadata("kda.scale ", "1"), "'kda.scale '"},
      {kSmallCase, metadata("kda.future", "1"), "'kda.future'"},
      {kSmallCase, metadata("kda.plan", "{"), "'kda.plan'"},
      {kSmallCase, metadata("kda.plan", R"({"problem":{"max_nodes":-1}})"), "'kda.plan': expected 'max_nodes'"},
      {kDecodeCase, metadata("kda.gate", "open"), "'kda.gate': expected softplus|bounded|precomputed, found 'open'"},
      {kDecodeCase, metadata("kda.gate", "softplus"), "tensor 'A_log': expected for decode, found none"},
      {kDecodeCase, metadata("kda.beta", ""), "'kda.beta'"},
      {kDecodeCase, metadata("kda.qk_l2norm", "yes"), "'kda.qk_l2norm': expected 0|1, found 'yes'"},
      {kDecodeCase, metadata("kda.scale", "1e999"), "'kda.scale'"},
      {kDecodeCase, metadata("kda.scale", "nan"), "'kda.scale'"},
      {kDecodeCase, metadata("kda.scale", "0.1x"), "'kda.scale'"},
      {kExtendCase, metadata("kda.lower_bound", "5"), "'kda.lower_bound': expected a finite number below 0"},
      {kDecodeCase, drop("q"), "tensor 'q': expected for decode, found none"},
      {kDecodeCase, drop("state"), "tensor 'state': expected for decode, found none"},
      {kSmallCase, drop("w"), "tensor 'w'"},
      {kDecodeCase, rename("expect.state", "expect.stat"),
       "tensor 'expect.stat': expected only tensors of the replay form"},
      {kDecodeCase, retype("k", io::TensorType::kI16), "tensor 'k': expected F32, BF16 or F16, found I16"},
      {kDecodeCase, retype("v", io::TensorType::kBF16), "KDA-"},
      {kDecodeCase, reshape("k", {4, 32, 2}), "tensor 'k': expected [4, 2, 32], found [4, 32, 2]"},
      {kDecodeCase, reshape("v", {2, 4, 16}), "tensor 'v': expected [4, a multiple of 2, V]"},
      {kDecodeCase, reshape("b", {8}), "tensor 'b': expected [4, 2]"},
      {kDecodeCase, reshape("state", {6, 2, 32, 16}), "tensor 'state': expected [6, 2, 16, 32]"},
      {kDecodeCase, reshape("state", {6, 2, 512}), "tensor 'state': expected [slots, HV, V, K]"},
      {kDecodeCase, reshape("slots", {2, 2}), "tensor 'slots': expected [N]"},
      {kDecodeCase, index("slots", 0, 6), "KDA-"},
      {kDecodeCase, index("dst_slots", 0, int64_t{1} << 30), "KDA-"},
      {kDecodeCase, index("dst_slots", 0, 5), "KDA-"},  // written twice
      {kExtendCase, index("cu_seqlens", 1, 99), "tensor 'cu_seqlens': entry 1"},
      {kExtendCase, index("cu_seqlens", 2, 3), "tensor 'cu_seqlens': entry 2"},
      {kExtendCase, index("cu_seqlens", 0, -1), "tensor 'cu_seqlens': entry 0"},
      {kExtendCase, index("snapshot_rows", 0, 7), "KDA-"},
      {kExtendCase, index("snapshot_positions", 0, 33), "KDA-"},
      {kExtendCase, drop("snapshot_positions"), "tensor 'snapshot_positions': expected with snapshot_rows"},
      {kSmallCase, index("parents", 3, 3), "tensor 'parents': row 0, node 3: expected from -1 to 2, found 3"},
      {kSmallCase, index("parents", 3, -2), "tensor 'parents': row 0, node 3"},
      {kSmallCase, index("tips", 0, 9), "KDA-"},
      {kSmallCase,
       [](EditableCase& replay) {
         std::erase_if(replay.tensors, [](const auto& tensor) { return tensor.first.rfind("expect.", 0) == 0; });
       },
       "expected at least one tensor expect.*, found none"},
  };
  ScratchDirectory scratch;
  for (const BadCase& bad : cases) {
    EditableCase replay = EditableCase::read(bad.path);
    bad.edit(replay);
    const std::string path = scratch.file("bad.safetensors");
    ASSERT_TRUE(replay.write(path)) << bad.message;
    SCOPED_TRACE(bad.message);
    expect_one_line(run_kda({"replay", path, "--json"}), bad.message);
  }
}

TEST(Misuse, SmallFilesCannotAskForAllMemory) {
  ScratchDirectory scratch;
  EditableCase replay = EditableCase::read(kSmallCase);
  replay.tensors["record_rows"] = replay.tensors.at("slots");
  for (size_t row = 0; row < 5; ++row)
    replay.tensors["record_rows"].set_index(row, 2000000000 + static_cast<int64_t>(row));
  const std::string path = scratch.file("big.safetensors");
  ASSERT_TRUE(replay.write(path));
  expect_one_line(run_kda({"replay", path}), "records: expected at most");
}

TEST(Output, HoldsFloatsShapedAsTheExpectations) {
  ScratchDirectory scratch;
  for (const std::string& path : case_files()) {
    const std::string out = scratch.file("out");
    const ProgramResult result = run_kda({"replay", path, "--out", out});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto written = io::SafetensorsFile::open(out + "/" + std::filesystem::path(path).filename().string());
    ASSERT_TRUE(written) << written.error();
    const EditableCase original = EditableCase::read(path);
    for (const char* name : {"out", "state", "conv_state", "dst_state", "snapshots"}) {
      const auto expected = original.tensors.find(std::string("expect.") + name);
      if (expected == original.tensors.end()) continue;
      const auto tensor = written->require(name, io::TensorType::kF32, expected->second.shape);
      ASSERT_TRUE(tensor) << tensor.error();
      // NaN where NaN is expected, and close enough to recognise elsewhere.
      const auto* values = reinterpret_cast<const float*>((*tensor)->data.data());
      const auto* wanted = reinterpret_cast<const float*>(expected->second.bytes.data());
      double error = 0, norm = 0;
      for (int64_t i = 0; i < (*tensor)->elements; ++i) {
        ASSERT_EQ(std::isnan(values[i]), std::isnan(wanted[i])) << path << " " << name << " " << i;
        if (std::isnan(wanted[i])) continue;
        error += (values[i] - wanted[i]) * (values[i] - wanted[i]);
        norm += wanted[i] * wanted[i];
      }
      EXPECT_LE(error, 1e-4 * norm) << path << " " << name;
    }
  }
}

TEST(Output, WithoutExpectationsAFileIsOnlyRun) {
  ScratchDirectory scratch;
  EditableCase replay = EditableCase::read(kDecodeCase);
  replay.tensors.erase("expect.out");
  replay.tensors.erase("expect.state");
  const std::string path = scratch.file("inputs.safetensors");
  ASSERT_TRUE(replay.write(path));
  EXPECT_EQ(run_kda({"replay", path, "--out", scratch.file("out")}).exit_code, 0);
  EXPECT_THAT(files_in(scratch.file("out")), ElementsAre(scratch.file("out/inputs.safetensors")));
}

TEST(Output, NothingIsLeftWhenItFails) {
  ScratchDirectory scratch;
  const std::string out = scratch.file("out");
  expect_one_line(run_kda({"replay", kSmallCase, scratch.file("none"), "--out", out}), "cannot open");
  EXPECT_THAT(files_in(out), IsEmpty());
  EditableCase replay = EditableCase::read(kDecodeCase);
  replay.tensors.at("slots").set_index(0, 99);
  ASSERT_TRUE(replay.write(scratch.file("bad.safetensors")));
  expect_one_line(run_kda({"replay", scratch.file("bad.safetensors"), "--out", out}), "KDA-");
  EXPECT_THAT(files_in(out), IsEmpty());
}

TEST(Output, RefusesDirectoriesThatWouldLoseSomething) {
  ScratchDirectory scratch;
  const std::string copy = scratch.write("copy.safetensors", contents(kSmallCase));
  expect_one_line(run_kda({"replay", copy, "--out", scratch.path()}), "another directory than the input's");
  EXPECT_EQ(contents(copy), contents(kSmallCase));
  expect_one_line(run_kda({"replay", kSmallCase, kSmallCase, "--out", scratch.file("out")}), "two of this name");
  expect_one_line(run_kda({"replay", kSmallCase, "--out", copy}), "expected a directory");
  expect_one_line(run_kda({"replay", kSmallCase, "--out", scratch.file("no/such/directory")}), "cannot make");
}

TEST(Program, HelpAndVersionGoToStdout) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"info", "--help"}, {"replay", "--help"}, {"--version"}}) {
    const ProgramResult result = run_kda(arguments);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.err, IsEmpty());
    EXPECT_THAT(result.out, HasSubstr(arguments.back() == "--version" ? "kda " : "--help"));
  }
  EXPECT_THAT(run_kda({"replay", "--help"}).out, HasSubstr("--json"));
}

TEST(Program, JsonIsOneObject) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"info", "--json"}, {"replay", "--json", kSmallCase, kDecodeCase}}) {
    const ProgramResult result = run_kda(arguments);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_TRUE(Json::parse(result.out, nullptr, false).is_object()) << result.out;
    EXPECT_THAT(result.err, IsEmpty());
  }
}

TEST(Program, AFullDiskIsNoSuccess) {
  const ProgramResult result = run_kda({"info"}, "/dev/full");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("cannot write to stdout"));
}

TEST(Program, TensorsThatTheOperationDoesNotUseAreNamed) {
  ScratchDirectory scratch;
  EditableCase replay = EditableCase::read(kDecodeCase);
  replay.tensors["tips"] = replay.tensors.at("slots");
  const std::string path = scratch.file("more.safetensors");
  ASSERT_TRUE(replay.write(path));
  const ProgramResult result = run_kda({"replay", path});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("tensor 'tips' is not used by decode"));
}

}  // namespace
}  // namespace kda::cli::testing
