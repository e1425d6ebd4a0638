// Tests of the tests: kernels broken on purpose, one way at a time, and the parity test that claims to guard against it
// must fail. The program under test is the parity suite linked with reference kernels that have faults built in, and
// with a registry that can misread the arguments of any backend's kernels; the latter are tried on every CPU target.
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "planted/launch_faults.h"
#include "reference/faults.h"

namespace {

struct Guard {
  const char* fault;
  const char* test;  // the test that claims to notice it
};

constexpr Guard kGuards[] = {
    {"chain_on_tree", "Recipes.C2_TreeStates"},
    {"sibling_leak", "Recipes.C2_TreeStates"},
    {"stale_record_row", "Matrix.VerifyAndCommit"},
    {"stale_record_row", "ConvMatrix.VerifyAndCommit"},
    {"stale_record_row", "Matrix.VerifyPending"},
    {"pool_rounding_skipped", "Exact.ThousandTreesBf16Pool"},
    {"extend_rounds_every_token", "Matrix.Extend"},
    {"out_after_pool_rounding", "Matrix.Decode"},
    {"decay_after_delta", "Recipes.C3_CommitOfEveryLength"},
    {"wrong_head_mapping", "Matrix.Decode"},
    {"gate_of_next_value_head", "Matrix.Decode"},
    {"gate_of_first_token", "Recipes2.C7_MixedBatch"},
    {"beta_of_first_token", "Recipes2.C7_MixedBatch"},
    {"snapshot_one_late", "Recipes.C4_SnapshotDepth"},
    {"snapshot_one_late", "ConvMatrix.Extend"},
    {"commit_before_tip", "Recipes.C3_CommitOfEveryLength"},
    {"commit_before_tip", "Recipes.C2_TreeConvolution"},
    {"commit_tip_minus_one_stores", "Recipes2.C8_EmptyFreshRowStoresZerosAndTipMinusOneDoesNot"},
    {"has_state_ignored", "Recipes2.C8_FreshRowsReadNothing"},
    {"null_row_ignored", "Recipes.C1_PaddingNeverTouchesALiveSlot"},
    {"null_row_ignored", "Recipes.C1_PaddingNeverTouchesALiveWindow"},
    {"null_slot0_ignored", "Recipes.C1_PaddingNeverTouchesALiveSlot"},
    {"null_out_not_written", "Recipes.C1_PaddingNeverTouchesALiveSlot"},
    {"slot_stride_ignored", "Recipes.C1_PaddingNeverTouchesALiveSlot"},
    {"slot_stride_ignored", "Recipes.C1b_SlotsBeyond32Bits"},
    {"token_stride_ignored", "Matrix.Extend"},
    {"layout_ignored", "Matrix.Decode"},
    {"cu_seqlens_start_ignored", "Recipes2.C7_MixedBatch"},
    {"empty_row_clears", "Recipes2.C8_EmptyRows"},
    {"dst_ignored", "Matrix.Decode"},
    {"layer_stride_ignored", "Layers.CommitByStrideAndByTable"},
    {"layer_stride_ignored", "Matrix.Move"},
    {"move_in_list_order", "Recipes2.C10_MovesAreSimultaneous"},
    {"single_root_ignored", "Matrix.VerifyAndCommit"},
    {"bounded_as_clamp", "Recipes2.C9_GateFormula"},
    {"l2norm_without_epsilon", "Recipes2.C6b_TinyAndZeroKeys"},
    {"dt_bias_dropped", "Matrix.Decode"},
    {"pending_not_applied", "Matrix.VerifyPending"},
    {"pending_not_applied", "ConvMatrix.VerifyPending"},
    {"record_header_unchecked", "Recipes2.C8_RecordsThatDoNotMatchAreSkipped"},
    {"conv_window_off_by_one", "Recipes.C1_PaddingNeverTouchesALiveWindow"},
    {"conv_chain_on_tree", "Recipes.C2_TreeConvolution"},
    {"conv_bias_dropped", "ConvMatrix.Extend"},
    {"conv_layout_ignored", "Recipes.C2_TreeConvolution"},
    {"conv_window_not_shifted", "Recipes2.C10_WindowsShiftInPlace"},
};

constexpr Guard kLaunchGuards[] = {
    {"parents_ignored", "Recipes.C2_TreeStates"},
    {"parents_ignored", "Recipes.C2_TreeConvolution"},
    {"record_rows_ignored", "Matrix.VerifyAndCommit"},
    {"record_rows_ignored", "ConvMatrix.VerifyAndCommit"},
    {"has_state_ignored", "Recipes2.C8_FreshRowsReadNothing"},
    {"null_row_ignored", "Recipes.C1_PaddingNeverTouchesALiveSlot"},
    {"null_row_ignored", "Recipes.C1_PaddingNeverTouchesALiveWindow"},
    {"null_slot0_ignored", "Recipes.C1_PaddingNeverTouchesALiveSlot"},
    {"null_slot0_ignored", "Matrix.Move"},
    {"single_root_ignored", "Matrix.VerifyAndCommit"},
    {"single_root_ignored", "ConvMatrix.VerifyAndCommit"},
    {"dst_ignored", "Matrix.Decode"},
    {"dst_ignored", "ConvMatrix.Extend"},
    {"tip_before", "Recipes.C3_CommitOfEveryLength"},
    {"tip_before", "Exact.ThousandConvTrees"},
    {"tip_none_commits", "Exact.ThousandTreesFp32Pool"},
    {"snapshot_elsewhere", "Recipes.C4_SnapshotDepth"},
    {"snapshot_elsewhere", "Recipes.C4_SnapshotInsideAWindow"},
    {"gate_of_first_token", "Recipes2.C7_MixedBatch"},
    {"beta_of_first_token", "Recipes2.C7_MixedBatch"},
    {"dt_bias_dropped", "Matrix.Decode"},
    {"A_log_of_next_parameter", "Matrix.Decode"},
    {"query_head_zero", "Matrix.Decode"},
    {"norm_flag_flipped", "Matrix.Extend"},
    {"scale_dropped", "Recipes2.C6b_IdenticalKeys"},
    {"lower_bound_fixed", "Matrix.Decode"},
    {"slot_stride_compact", "Recipes.C1_PaddingNeverTouchesALiveSlot"},
    {"layout_swapped", "Matrix.Decode"},
    {"layers_ignored", "Layers.CommitByStrideAndByTable"},
    {"layers_ignored", "Layers.ConvCommitByStrideAndByTable"},
    {"pool_rounding_skipped", "Exact.ThousandTreesBf16Pool"},
    {"rounded_as_bf16_pool", "Exact.ThousandTreesFp32Pool"},
    {"cu_seqlens_from_zero", "Recipes2.C7_MixedBatch"},
    {"pending_ignored", "Matrix.VerifyPending"},
    {"pending_ignored", "ConvMatrix.VerifyPending"},
    {"move_in_list_order", "Recipes2.C10_MovesAreSimultaneous"},
    {"conv_bias_dropped", "ConvMatrix.Extend"},
    {"conv_weight_of_next_tap", "ConvMatrix.Decode"},
};

constexpr int kTestsPassed = 0, kTestsFailed = 1, kDidNotRun = -1;

constexpr char kReferenceFault[] = "KDA_PLANTED_FAULT=", kLaunchFault[] = "KDA_PLANTED_LAUNCH_FAULT=";

// Where the program under test lies; the environment variable is for folders that were moved to another machine.
std::string faulty_parity() {
  const char* elsewhere = std::getenv("KDA_FAULTY_PARITY");
  return elsewhere != nullptr ? elsewhere : KDA_FAULTY_PARITY;
}

// Exit code of the parity suite, or kDidNotRun if it crashed or could not start. `fault` is a setting of the
// environment or empty.
int run_parity(const std::string& fault, const std::string& filter) {
  const std::string program = faulty_parity(), filter_option = "--gtest_filter=" + filter;
  const char* arguments[] = {program.c_str(), filter_option.c_str(), "--gtest_brief=1", "--gtest_fail_fast", nullptr};
  std::vector<char*> environment;
  std::string scale = "KDA_PARITY_SCALE=0.3";
  for (char** e = environ; *e != nullptr; ++e)
    // GTEST_: a shard of this program would run a shard of that one.
    if (std::string(*e).rfind("KDA_", 0) != 0 && std::string(*e).rfind("GTEST_", 0) != 0) environment.push_back(*e);
  environment.push_back(scale.data());
  if (!fault.empty()) environment.push_back(const_cast<char*>(fault.c_str()));
  environment.push_back(nullptr);
  posix_spawn_file_actions_t quiet;
  posix_spawn_file_actions_init(&quiet);
  posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", 1 /* O_WRONLY */, 0);
  posix_spawn_file_actions_adddup2(&quiet, STDOUT_FILENO, STDERR_FILENO);
  pid_t pid = 0;
  const int failed =
      posix_spawn(&pid, program.c_str(), &quiet, nullptr, const_cast<char**>(arguments), environment.data());
  posix_spawn_file_actions_destroy(&quiet);
  int status = 0;
  if (failed != 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return kDidNotRun;
  return WEXITSTATUS(status);
}

std::string on_target(const char* test, const std::string& target) {
  return std::string("Backends/") + test + "/" + target;
}
std::string on_reference(const char* test) { return on_target(test, "reference"); }

// Names of all parity tests of this machine, with their targets.
std::set<std::string> all_tests() {
  const std::string command = faulty_parity() + " --gtest_list_tests 2>/dev/null";
  std::set<std::string> tests;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return tests;
  std::string suite;
  char line[512];
  while (std::fgets(line, sizeof(line), pipe) != nullptr) {
    std::string text = line;
    text = text.substr(0, text.find_first_of("#\n"));
    while (!text.empty() && text.back() == ' ') text.pop_back();
    text.rfind("  ", 0) == 0 ? void(tests.insert(suite + text.substr(2))) : void(suite = text);
  }
  pclose(pipe);
  return tests;
}

// Every SIMD target of the CPU backend, and the CUDA backend where there is a GPU; or the one that the environment
// names.
std::set<std::string> kernel_targets() {
  if (const char* only = std::getenv("KDA_PLANTED_TARGET")) return {only};
  const std::string prefix = "Backends/Matrix.Decode/c";
  std::set<std::string> targets;
  for (const std::string& test : all_tests())
    if (test.rfind(prefix, 0) == 0) targets.insert(test.substr(test.rfind('/') + 1));
  return targets;
}

TEST(PlantedFaults, AllGuardsPassWithoutAFault) {
  std::string all;
  for (const Guard& guard : kGuards) all += on_reference(guard.test) + ":";
  for (const Guard& guard : kLaunchGuards) all += on_target(guard.test, "c*") + ":";
  EXPECT_EQ(run_parity("", all), kTestsPassed);
}

// A filter that names no test passes too: every guard has to be a test that exists.
TEST(PlantedFaults, EveryGuardExists) {
  const std::set<std::string> tests = all_tests();
  for (const Guard& guard : kLaunchGuards) EXPECT_EQ(tests.count(on_reference(guard.test)), 1u) << guard.test;
  for (const Guard& guard : kGuards) EXPECT_EQ(tests.count(on_reference(guard.test)), 1u) << guard.test;
}

TEST(PlantedFaults, EveryFaultHasAGuard) {
  std::set<std::string> guarded;
  for (const Guard& guard : kGuards) guarded.insert(guard.fault);
  for (const Guard& guard : kLaunchGuards) guarded.insert(std::string("launch ") + guard.fault);
#define KDA_FAULT(name) EXPECT_EQ(guarded.count(#name), 1u) << #name;
  KDA_REFERENCE_FAULTS(KDA_FAULT)
#undef KDA_FAULT
#define KDA_FAULT(name) EXPECT_EQ(guarded.count("launch " #name), 1u) << #name;
  KDA_LAUNCH_FAULTS(KDA_FAULT)
#undef KDA_FAULT
}

class PlantedFault : public testing::TestWithParam<Guard> {};

TEST_P(PlantedFault, IsCaught) {
  EXPECT_EQ(run_parity(std::string(kReferenceFault) + GetParam().fault, on_reference(GetParam().test)), kTestsFailed)
      << GetParam().test << " did not notice the fault " << GetParam().fault;
}

class PlantedLaunchFault : public testing::TestWithParam<Guard> {};

TEST_P(PlantedLaunchFault, IsCaughtOnEveryTarget) {
  const std::set<std::string> targets = kernel_targets();
  if (targets.empty()) GTEST_SKIP() << "no backend but the reference takes part in parity";
  for (const std::string& target : targets)
    EXPECT_EQ(run_parity(std::string(kLaunchFault) + GetParam().fault, on_target(GetParam().test, target)),
              kTestsFailed)
        << GetParam().test << " did not notice the fault " << GetParam().fault << " on " << target;
}

std::string guard_name(const testing::TestParamInfo<Guard>& info) {
  std::string name = std::string(info.param.fault) + "__" + info.param.test;
  for (char& c : name)
    if (c == '.') c = '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(Reference, PlantedFault, testing::ValuesIn(kGuards), guard_name);
INSTANTIATE_TEST_SUITE_P(Cpu, PlantedLaunchFault, testing::ValuesIn(kLaunchGuards), guard_name);

}  // namespace
