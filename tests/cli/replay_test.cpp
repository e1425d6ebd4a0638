// kda replay: the cases pass everywhere, and a fault planted in any of them is caught.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/case_editor.h"
#include "cli/program.h"

namespace kda::cli::testing {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

std::vector<std::string> replay_arguments(std::vector<std::string> options, const std::vector<std::string>& files) {
  options.insert(options.begin(), "replay");
  options.insert(options.end(), files.begin(), files.end());
  return options;
}

void expect_all_pass(const std::vector<std::string>& options) {
  std::vector<std::string> arguments = replay_arguments(options, case_files());
  arguments.push_back("--json");
  const ProgramResult result = run_kda(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
  const Json report = Json::parse(result.out, nullptr, false);
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(report["files"].size(), case_files().size());
  for (const Json& file : report["files"]) {
    EXPECT_TRUE(file["pass"]) << file;
    EXPECT_FALSE(file["tensors"].empty()) << file;
    EXPECT_EQ(file["device_status"], 0) << file;
    int64_t compared = 0;
    for (const Json& tensor : file["tensors"]) compared += tensor["live"].get<int64_t>();
    EXPECT_GT(compared, 0) << file;
  }
}

TEST(Replay, ThereAreTwelveGivenCasesAndAtLeastNineOwnOnes) {
  EXPECT_EQ(files_in(KDA_TEST_DATA "/cases").size(), 12u);
  EXPECT_GE(files_in(KDA_TEST_DATA "/own").size(), 9u);
}

TEST(Replay, EveryCasePassesOnTheReference) { expect_all_pass({"--backend", "reference"}); }

TEST(Replay, EveryCasePassesOnEveryCpuTarget) {
  const ProgramResult info = run_kda({"info", "--json"});
  ASSERT_EQ(info.exit_code, 0) << info.err;
  int targets = 0;
  const Json machine = Json::parse(info.out, nullptr, false);
  for (const Json& target : machine["cpu_targets"]) {
    if (!target["available"].get<bool>()) continue;
    ++targets;
    SCOPED_TRACE(target["name"].get<std::string>());
    expect_all_pass({"--backend", "cpu", "--target", target["name"], "--threads", targets % 2 == 0 ? "1" : "2"});
  }
  EXPECT_GE(targets, 2);
}

// One planted fault: a file that must fail.
struct Fault {
  std::string name;
  EditableCase replay;
};

// Replays all faulty files in one go; each must be judged "no". With `may_be_refused` some may be refused as bad calls
// instead, but at least half must have run.
void expect_all_fail(const std::vector<Fault>& faults, bool may_be_refused = false) {
  ASSERT_FALSE(faults.empty());
  ScratchDirectory scratch;
  std::vector<std::string> files;
  for (const Fault& fault : faults) {
    files.push_back(scratch.file(fault.name + ".safetensors"));
    ASSERT_TRUE(fault.replay.write(files.back()));
  }
  if (may_be_refused) {
    const size_t all = files.size();
    std::erase_if(files, [](const std::string& file) { return run_kda({"replay", file}).exit_code == 2; });
    ASSERT_GE(2 * files.size(), all);
  }
  std::vector<std::string> arguments = replay_arguments({"--json"}, files);
  const ProgramResult result = run_kda(arguments);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  const Json report = Json::parse(result.out, nullptr, false);
  ASSERT_TRUE(report.is_object()) << result.err;
  ASSERT_EQ(report["files"].size(), files.size());
  for (const Json& file : report["files"]) EXPECT_FALSE(file["pass"].get<bool>()) << "not caught: " << file["file"];
}

std::string stem(const std::string& path) { return std::filesystem::path(path).stem().string(); }

bool is_expectation(const std::string& name) { return name.rfind("expect.", 0) == 0; }

TEST(ReplayFaults, ExpectationsOffByAFewPercentAreCaught) {
  std::vector<Fault> faults;
  for (const std::string& path : case_files()) {
    const EditableCase original = EditableCase::read(path);
    for (const auto& [name, tensor] : original.tensors) {
      if (!is_expectation(name)) continue;
      Fault fault{stem(path) + "." + name, original};
      bool changed = false;
      for (float& value : fault.replay.tensors[name].as<float>()) {
        changed |= std::isfinite(value) && value != 0;
        value *= 1.03f;
      }
      if (changed) faults.push_back(std::move(fault));
    }
  }
  EXPECT_GE(faults.size(), 50u);
  expect_all_fail(faults);
}

TEST(ReplayFaults, OneWrongHeadIsCaught) {
  std::vector<Fault> faults;
  for (const std::string& path : case_files()) {
    Fault fault{stem(path), EditableCase::read(path)};
    if (!fault.replay.has("expect.out")) continue;
    EditableTensor& out = fault.replay.tensors["expect.out"];
    const auto width = static_cast<size_t>(out.shape.back());
    const auto values = out.as<float>();
    // One head of the last token that has a value.
    for (size_t begin = values.size() - width;; begin -= width) {
      if (values[begin] != 0 && std::isfinite(values[begin])) {
        for (size_t i = begin; i < begin + width; ++i) values[i] = -values[i];
        break;
      }
      ASSERT_NE(begin, 0u);
    }
    faults.push_back(std::move(fault));
  }
  expect_all_fail(faults);
}

TEST(ReplayFaults, TouchedSlotsAreCaught) {
  std::vector<Fault> faults;
  for (const std::string& path : case_files()) {
    const EditableCase original = EditableCase::read(path);
    for (const auto& [name, tensor] : original.tensors) {
      if (!is_expectation(name) || name == "expect.out") continue;
      // The file says a slot full of NaN becomes zeros; the library leaves it alone.
      Fault fault{stem(path) + "." + name, original};
      bool changed = false;
      for (float& value : fault.replay.tensors[name].as<float>()) {
        changed |= std::isnan(value);
        if (std::isnan(value)) value = 0;
      }
      if (changed) faults.push_back(std::move(fault));
    }
  }
  EXPECT_GE(faults.size(), 15u);
  expect_all_fail(faults);
}

TEST(ReplayFaults, NullRowsThatAreNotZeroAreCaught) {
  std::vector<Fault> faults;
  for (const std::string& path : case_files()) {
    Fault fault{stem(path), EditableCase::read(path)};
    bool changed = false;
    if (!fault.replay.has("expect.out")) continue;
    for (float& value : fault.replay.tensors["expect.out"].as<float>()) {
      changed |= value == 0;
      if (value == 0) value = 1e-20f;
    }
    if (changed) faults.push_back(std::move(fault));
  }
  EXPECT_GE(faults.size(), 5u);
  expect_all_fail(faults);
}

// Swaps one index list for another that is as valid.
template <class Edit>
std::vector<Fault> edited(const char* tensor, const Edit& edit) {
  std::vector<Fault> faults;
  for (const std::string& path : case_files()) {
    Fault fault{stem(path), EditableCase::read(path)};
    if (fault.replay.has(tensor) && edit(fault.replay, fault.replay.tensors[tensor]))
      faults.push_back(std::move(fault));
  }
  return faults;
}

bool packed_row(const EditableCase& replay, size_t row, size_t* begin, size_t* end) {
  const EditableTensor& cu = replay.tensors.at("cu_seqlens");
  if (row + 1 >= cu.index_count()) return false;
  *begin = static_cast<size_t>(cu.index(row));
  *end = static_cast<size_t>(cu.index(row + 1));
  return true;
}

TEST(ReplayFaults, SwappedParentsAreCaught) {
  const auto faults = edited("parents", [](EditableCase& replay, EditableTensor& parents) {
    const bool by_row = parents.shape.size() == 2;
    size_t begin = 0, end = 0;
    for (size_t row = 0; packed_row(replay, row, &begin, &end); ++row) {
      if (replay.tensors["slots"].index(row) < 0 || end - begin < 3) continue;
      const size_t at = by_row ? row * static_cast<size_t>(parents.shape[1]) : begin;
      // The row's third node: from one of {-1, 0, 1} to another.
      parents.set_index(at + 2, parents.index(at + 2) == 0 ? 1 : 0);
      return true;
    }
    return false;
  });
  EXPECT_GE(faults.size(), 9u);
  expect_all_fail(faults, /*may_be_refused=*/true);
}

TEST(ReplayFaults, OtherTipsAreCaught) {
  const auto faults = edited("tips", [](EditableCase& replay, EditableTensor& tips) {
    size_t begin = 0, end = 0;
    for (size_t row = 0; packed_row(replay, row, &begin, &end); ++row) {
      if (replay.tensors["slots"].index(row) < 0 || end == begin) continue;
      tips.set_index(row, tips.index(row) < 0 ? 0 : tips.index(row) - 1);
      return true;
    }
    return false;
  });
  EXPECT_GE(faults.size(), 9u);
  expect_all_fail(faults, /*may_be_refused=*/true);
}

TEST(ReplayFaults, OtherPendingTipsAndRecordRowsAreCaught) {
  auto faults = edited("pending_tips", [](EditableCase&, EditableTensor& tips) {
    tips.set_index(0, tips.index(0) - 1);
    return true;
  });
  EXPECT_GE(faults.size(), 2u);
  expect_all_fail(faults, /*may_be_refused=*/true);
  faults = edited("pending_record_rows", [](EditableCase&, EditableTensor& rows) {
    rows.set_index(1, rows.index(0));  // a longer draft of another row: its tip exists there, its states do not
    return true;
  });
  EXPECT_GE(faults.size(), 2u);
  expect_all_fail(faults, /*may_be_refused=*/true);
}

TEST(ReplayFaults, OtherFlagsAndPositionsAreCaught) {
  auto faults = edited("has_state", [](EditableCase&, EditableTensor& flags) {
    for (std::byte& flag : flags.bytes) {
      if (flag != std::byte{0}) {
        flag = std::byte{0};
        return true;
      }
    }
    return false;
  });
  EXPECT_GE(faults.size(), 4u);
  expect_all_fail(faults);
  faults = edited("snapshot_positions", [](EditableCase&, EditableTensor& positions) {
    positions.set_index(0, positions.index(0) == 0 ? 1 : 0);
    return true;
  });
  EXPECT_GE(faults.size(), 3u);
  expect_all_fail(faults);
}

TEST(ReplayFaults, OtherMetadataIsCaught) {
  std::vector<Fault> faults;
  const std::pair<const char*, std::map<std::string, std::string>> other[] = {
      {"kda.gate", {{"softplus", "bounded"}, {"bounded", "softplus"}}},
      {"kda.beta", {{"sigmoid", "sigmoid2"}, {"sigmoid2", "sigmoid"}, {"none", "sigmoid"}}},
      {"kda.qk_l2norm", {{"1", "0"}, {"0", "1"}}},
      {"kda.lower_bound", {{"-5.0", "-4.0"}, {"-4.0", "-5.0"}}},
      {"kda.scale", {{"0.125", "0.12"}, {"0.3", "0.29"}, {"0.08838834764831845", "0.09"}}},
  };
  for (const std::string& path : case_files()) {
    const EditableCase original = EditableCase::read(path);
    for (const auto& [key, words] : other) {
      const auto value = original.metadata.find(key);
      if (value == original.metadata.end() || words.count(value->second) == 0) continue;
      if (words.at(value->second) == "softplus" && !original.has("A_log")) continue;  // refused, not judged
      Fault fault{stem(path) + key, original};
      fault.replay.metadata[key] = words.at(value->second);
      faults.push_back(std::move(fault));
    }
  }
  EXPECT_GE(faults.size(), 30u);
  expect_all_fail(faults);
}

}  // namespace
}  // namespace kda::cli::testing
