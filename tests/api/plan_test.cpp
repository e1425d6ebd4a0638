// The planner: defaults, forced choices, candidates, and the question without the plan.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <set>

#include "api/world.h"
#include "core/record_format.h"
#include "plan/planner.h"
#include "plan/registry.h"

namespace kda_test {
namespace {

TEST(Plan, DefaultsAreFilledIn) {
  kda_problem p = kda::problem();
  p.heads = 3;
  p.key_dim = 16;
  p.conv_width = 4;
  kda::Request request;
  ASSERT_EQ(kda::read_problem(&p, kda::kernel_registry(), &request, {}), KDA_OK);
  kda::Problem expected;
  expected.operations = KDA_ALL_STATE_OPERATIONS | KDA_ALL_CONV_OPERATIONS;
  expected.heads = expected.value_heads = 3;
  expected.key_dim = expected.value_dim = 16;
  expected.conv_width = 4;
  EXPECT_EQ(request.problem, expected);
  EXPECT_EQ(request.problem.io, kda::DType::bf16);
  EXPECT_EQ(request.problem.state, kda::DType::fp32);
}

TEST(Plan, EachBackendServesItsOwnKernels) {
  for (int32_t backend : {KDA_BACKEND_REFERENCE, KDA_BACKEND_CPU}) {
    kda_problem problem = World::default_problem();
    problem.backend = backend;
    problem.operations = KDA_ALL_STATE_OPERATIONS;
    kda::Context context;
    kda::Plan plan(context, problem);
    EXPECT_EQ(plan.info().backend, backend);
    for (int32_t op = 0; op < KDA_OPERATION_COUNT; ++op) {
      int taken = 0;
      const int32_t count = kda_plan_candidate_count(plan.get(), op);
      for (int32_t i = 0; i < count; ++i) {
        auto candidate = kda::args<kda_candidate>();
        ASSERT_EQ(kda_plan_get_candidate(plan.get(), op, i, &candidate), KDA_OK);
        EXPECT_STRNE(candidate.reason, "") << candidate.kernel;
        taken += candidate.taken;
        if (candidate.taken != 0) {
          EXPECT_EQ(candidate.status, KDA_OK);
        }
      }
      EXPECT_EQ(taken, op < KDA_CONV_EXTEND ? 1 : 0) << "operation " << op;
    }
  }
}

TEST(Plan, AForcedKernelIsTaken) {
  kda_problem problem = World::default_problem();
  problem.backend = KDA_BACKEND_AUTO;
  problem.operations = KDA_OPERATION_BIT(KDA_EXTEND) | KDA_OPERATION_BIT(KDA_DECODE);
  problem.kernels = " decode=reference_decode , extend = reference_extend";
  kda::Context context;
  kda::Plan plan(context, problem);
  EXPECT_EQ(plan.info().backend, KDA_BACKEND_REFERENCE) << "AUTO follows a forced kernel for the whole problem";
  bool forced = false;
  for (int32_t i = 0; i < kda_plan_candidate_count(plan.get(), KDA_DECODE); ++i) {
    auto candidate = kda::args<kda_candidate>();
    kda_plan_get_candidate(plan.get(), KDA_DECODE, i, &candidate);
    if (candidate.taken != 0)
      forced = std::strcmp(candidate.kernel, "reference_decode") == 0 && std::strcmp(candidate.reason, "forced") == 0;
  }
  EXPECT_TRUE(forced);
}

// A registry of the test's own: priorities and needs, which the built-in kernels hardly use.
TEST(Planner, TheFitKernelOfTheHighestPriorityWins) {
  const auto row = [](const char* name, kda::Backend backend, kda::Needs needs, int priority) {
    return kda::KernelRow{.name = name,
                          .backend = backend,
                          .operation = kda::Operation::decode,
                          .run = {},
                          .needs = needs,
                          .priority = priority};
  };
  const kda::KernelRow rows[] = {
      row("cpu_low", kda::Backend::cpu, {}, 0),
      row("cpu_high", kda::Backend::cpu, {.dim_multiple = 16}, 5),
      row("reference", kda::Backend::reference, {}, 9),
  };
  kda::Request request;
  request.problem.operations = KDA_OPERATION_BIT(KDA_DECODE);
  request.problem.key_dim = request.problem.value_dim = 32;
  kda::Choice choice;
  const auto chosen = [&] {
    EXPECT_EQ(kda::choose_kernels(rows, request, {}, &choice, {}), KDA_OK);
    return std::string(choice.kernels[KDA_DECODE]->name);
  };
  EXPECT_EQ(chosen(), "cpu_high");
  request.problem.key_dim = 24;
  EXPECT_EQ(chosen(), "cpu_low");
  request.backend = KDA_BACKEND_REFERENCE;
  EXPECT_EQ(chosen(), "reference");
  request.backend = KDA_BACKEND_AUTO;
  request.forced[KDA_DECODE] = &rows[2];
  EXPECT_EQ(chosen(), "reference");
  request.forced[KDA_DECODE] = &rows[1];
  auto error = kda::args<kda_error>();
  EXPECT_EQ(kda::choose_kernels(rows, request, {}, &choice, {&error}), KDA_E_KERNEL_UNFIT);
  EXPECT_NE(std::string(error.supported).find("key_dim 24"), std::string::npos) << error.message;
}

TEST(Plan, InfoFollowsTheRecordFormat) {
  for (int64_t dim : {128, 64}) {
    for (int32_t io : {KDA_BF16, KDA_FP32}) {
      kda_problem problem = kda::problem();
      problem.heads = 4;
      problem.key_dim = static_cast<int32_t>(dim);
      problem.io_dtype = io;
      problem.max_nodes = 16;
      problem.conv_width = 4;
      kda::Context context;
      kda::Plan plan(context, problem);
      const kda_plan_info& info = plan.info();
      EXPECT_EQ(info.record_row_bytes % info.record_alignment, 0u);
      EXPECT_GE(info.record_row_bytes, 16 + 8 * 16 + 16 * 4 * info.record_node_bytes);
      if (dim == 128) {
        EXPECT_LE(info.record_node_bytes, io == KDA_BF16 ? 1312u : 1568u);
      }
      EXPECT_EQ(info.state_slot_bytes, static_cast<size_t>(4 * dim * dim * 4));
      EXPECT_EQ(info.conv_record_row_bytes, kda_plan_conv_record_row_bytes(plan.get(), 3 * 4 * dim));
      EXPECT_LE(info.workspace_bytes, 64u << 20);
    }
  }
}

kda_problem random_problem(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int64_t> values) {
    return static_cast<int32_t>(values.begin()[random() % values.size()]);
  };
  kda_problem p = kda::problem();
  p.backend = pick({0, 0, 1, 2, 2, 3, 4});
  p.operations = random() % 3 == 0 ? static_cast<uint32_t>(random() % 4096) : 0;
  p.layers = pick({0, 1, 60, -1, 1 << 20});
  p.max_rows = pick({0, 1, 33, 100000});
  p.max_tokens = pick({0, 1, 4096});
  p.max_nodes = pick({0, 1, 16, 64, 65});
  p.heads = pick({1, 2, 4, 32, 0});
  p.value_heads = pick({0, 4, 8, 32, 3});
  p.key_dim = pick({1, 16, 64, 100, 128, 256, 257});
  p.value_dim = pick({0, 1, 64, 96, 128, 256});
  p.conv_width = pick({0, 0, 2, 4, 5});
  p.io_dtype = pick({0, 1, 2, 3});
  p.gate_dtype = pick({0, 0, 1, 2});
  p.state_dtype = pick({0, 1, 2, 3});
  p.gate = pick({0, 1, 2});
  p.beta = pick({0, 1, 2});
  p.state_layout = pick({0, 1});
  p.extend_numerics = pick({0, 1});
  p.verify_numerics = pick({0, 0, 0, 1});
  p.max_workspace_bytes = pick({0, 0, 0, 100});
  p.kernels = random() % 8 == 0 ? "decode=reference_decode" : nullptr;
  return p;
}

TEST(Plan, CanRunAgreesWithTheMakingOfPlans) {
  std::mt19937 random(11);
  kda::Context context;
  std::set<kda_status> seen;
  double spent = 0;
  constexpr int kProblems = 3000;
  for (int i = 0; i < kProblems; ++i) {
    const kda_problem problem = random_problem(random);
    auto made_error = kda::args<kda_error>(), asked_error = kda::args<kda_error>();
    kda_plan* plan = nullptr;
    const kda_status made = kda_plan_create(context.get(), &problem, &plan, &made_error);
    const auto start = std::chrono::steady_clock::now();
    const kda_status asked = kda_can_run(context.get(), &problem, &asked_error);
    spent += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_EQ(made, asked);
    EXPECT_STREQ(made_error.message, asked_error.message);
    EXPECT_EQ(plan != nullptr, made == KDA_OK);
    if (plan != nullptr) {
      kda_plan_info info = kda::args<kda_plan_info>();
      EXPECT_EQ(kda_plan_get_info(plan, &info), KDA_OK);
      EXPECT_LE(info.workspace_bytes, problem.max_workspace_bytes == 0 ? 64u << 20 : 100u);
    }
    kda_plan_destroy(plan);
    seen.insert(made);
  }
  EXPECT_GE(seen.size(), 6u) << "the sample holds plans and refusals of many kinds";
  EXPECT_TRUE(seen.count(KDA_OK));
  RecordProperty("can_run_microseconds", std::to_string(spent / kProblems * 1e6));
  std::printf("kda_can_run: %.2f us a problem, texts included\n", spent / kProblems * 1e6);
}

TEST(Plan, DescriptionsAreWholeWhateverTheBuffer) {
  kda::Context context;
  kda::Plan plan(context, World::default_problem());
  const std::string whole = plan.describe();
  EXPECT_EQ(whole.front(), '{');
  EXPECT_EQ(whole.back(), '}');
  EXPECT_NE(whole.find("\"reference_verify_pending\""), std::string::npos);
  char cut[20];
  size_t needed = 0;
  EXPECT_EQ(kda_plan_describe(plan.get(), cut, sizeof(cut), &needed), KDA_OK);
  EXPECT_EQ(needed, whole.size() + 1);
  EXPECT_EQ(std::string(cut), whole.substr(0, 19));
  EXPECT_NE(context.describe().find("\"backends\""), std::string::npos);
}

}  // namespace
}  // namespace kda_test
