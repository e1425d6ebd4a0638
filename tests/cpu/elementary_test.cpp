// Gate, step size and norm against double, over their whole range, on every SIMD target this machine has.
#include <gtest/gtest.h>

#include "cpu/fixture.h"
#include "cpu/target_functions.h"

namespace kda::test {
namespace {

class CpuElementary : public testing::TestWithParam<int> {};

// The prepared token of one head with K = V = 16 and the given raw gates.
struct Prepared {
  float storage[7 * 16];
  cpu::PreparedToken token;
  Prepared(const cpu::HeadParameters& head, const std::vector<float>& gates, float b, int target) {
    std::vector<float> q(16, 0.5f), k(16, -0.25f), v(16, 1.0f);
    float* s = storage;
    token = {.decay = s,
             .key = s + 16,
             .decayed_key = s + 32,
             .decayed_query = s + 48,
             .value = s + 64,
             .correction = s + 80,
             .out = s + 96,
             .key_query = 0,
             .beta = 0};
    NormFactor rnorm;
    const auto bytes = [](const std::vector<float>& x) { return reinterpret_cast<const std::byte*>(x.data()); };
    cpu::target_functions(target).prepare({.head = &head,
                                           .q = bytes(q),
                                           .k = bytes(k),
                                           .v = bytes(v),
                                           .a = bytes(gates),
                                           .b = reinterpret_cast<const std::byte*>(&b),
                                           .io = DType::fp32,
                                           .gate_dtype = DType::fp32,
                                           .beta_dtype = DType::fp32,
                                           .key_dim = 16,
                                           .value_dim = 16,
                                           .token = &token,
                                           .key_rnorm = &rnorm});
  }
};

TEST_P(CpuElementary, Decay) {
  const std::vector<float> zeros(16, 0.0f);
  Random random(7);
  for (Gate gate : {Gate::softplus, Gate::bounded, Gate::precomputed}) {
    for (int round = 0; round < 3000; ++round) {
      const float exp_A = std::exp(random.normal());
      const cpu::HeadParameters head{.gate = gate,
                                     .beta = Beta::sigmoid,
                                     .qk_l2norm = true,
                                     .scale = 1,
                                     .lower_bound = -5,
                                     .exp_A = exp_A,
                                     .bias = zeros.data()};
      std::vector<float> gates(16);
      for (float& g : gates) g = random.normal() * (random.chance(0.5) ? 2.0f : 30.0f);
      if (gate == Gate::precomputed) {
        for (float& g : gates) g = -std::abs(g) * std::pow(10.0f, static_cast<float>(random.in(-9, 1)));
      }
      const Prepared p(head, gates, 0, GetParam());
      for (int i = 0; i < 16; ++i) {
        const double x = gates[i];
        const double g = gate == Gate::softplus  ? -double(exp_A) * (x > 20 ? x : std::log1p(std::exp(x)))
                         : gate == Gate::bounded ? -5 / (1 + std::exp(-double(exp_A) * x))
                                                 : x;
        // fp32's own limit: g carries some relative roundings, which exp turns into |g| of them.
        EXPECT_NEAR(p.token.decay[i], std::exp(g), (1.5 + 6 * std::abs(g)) * 6e-8 * std::exp(g) + 2e-38) << "x " << x;
      }
    }
  }
}

TEST_P(CpuElementary, DecayAtTheEnds) {
  const std::vector<float> zeros(16, 0.0f);
  const cpu::HeadParameters head{.gate = Gate::precomputed,
                                 .beta = Beta::sigmoid,
                                 .qk_l2norm = true,
                                 .scale = 1,
                                 .lower_bound = -5,
                                 .exp_A = 1,
                                 .bias = zeros.data()};
  std::vector<float> gates(16, 0.0f);
  gates[1] = -1000;
  gates[2] = -std::numeric_limits<float>::infinity();
  gates[3] = -8.0003e-5f;
  const Prepared p(head, gates, 0, GetParam());
  EXPECT_EQ(p.token.decay[0], 1.0f);
  EXPECT_EQ(p.token.decay[1], 0.0f);
  EXPECT_EQ(p.token.decay[2], 0.0f);
  EXPECT_EQ(p.token.decay[3], static_cast<float>(std::exp(-8.0003e-5)));  // 4096 of these must not drift
}

TEST_P(CpuElementary, StepSize) {
  const std::vector<float> zeros(16, 0.0f);
  for (float b = -90; b < 90; b += 0.37f) {
    for (Beta form : {Beta::sigmoid, Beta::sigmoid2, Beta::none}) {
      const cpu::HeadParameters head{.gate = Gate::precomputed,
                                     .beta = form,
                                     .qk_l2norm = true,
                                     .scale = 1,
                                     .lower_bound = -5,
                                     .exp_A = 1,
                                     .bias = zeros.data()};
      const double sigmoid = 1 / (1 + std::exp(-double(b)));
      const double expected = form == Beta::none ? b : form == Beta::sigmoid2 ? 2 * sigmoid : sigmoid;
      // Exp answers 0 below the least normal number, 1.2e-38; sigmoid2 doubles it.
      EXPECT_NEAR(Prepared(head, zeros, b, GetParam()).token.beta, expected, 4e-7 * std::abs(expected) + 2.4e-38) << b;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, CpuElementary, testing::ValuesIn(available_targets()),
                         [](const auto& info) { return cpu_target_name(info.param); });

}  // namespace
}  // namespace kda::test
