// The judge against numbers worked out by hand: who judges the kernels has to be right first.
#include "judge/judge.h"

#include <gtest/gtest.h>

#include "judge/generators.h"

namespace judge {
namespace {

// q = k = e0, decay 0.5, beta 0.5: row 0 of the state obeys s' = 0.25 s + 0.5 v.
struct Scalar {
  Form f;
  Tokens in;
  explicit Scalar(const std::vector<double>& v) {
    f.K = f.V = 4;
    f.gate = Gate::precomputed;
    f.beta = Beta::none;
    f.l2norm = false;
    f.scale = 1;
    for (double x : v) {
      for (int c = 0; c < 4; ++c) {
        in.q.push_back(c == 0);
        in.k.push_back(c == 0);
        in.v.push_back(x);
        in.a.push_back(std::log(0.5));
      }
      in.b.push_back(0.5);
    }
  }
};

TEST(Judge, DecaysBeforeTheDelta) {
  Scalar s({4});
  State state = zero_state(s.f);
  for (int v = 0; v < 4; ++v) state[v * 4] = 8;
  const auto out = advance(s.f, s.in, 0, &state);
  EXPECT_NEAR(state[0], 4, 1e-12);  // delta before decay would give 3
  EXPECT_NEAR(out[0], 4, 1e-12);
}

TEST(Judge, WalksTrees) {
  Scalar s({4, 8, 16, 0, 32});
  State state = zero_state(s.f);
  for (int v = 0; v < 4; ++v) state[v * 4] = 8;
  const Tree tree = walk_tree(s.f, s.in, 0, {-1, 0, 0, 1, 2}, state, false);
  const double want[] = {4, 5, 9, 1.25, 18.25};
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(tree.states[i][0], want[i], 1e-12) << i;
  EXPECT_EQ(path_to({-1, 0, 0, 1, 2}, 4), (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(depth_of({-1, 0, 0, 1, 2}), 3);
}

TEST(Judge, Gates) {
  Form f;
  Tokens in;
  in.A_log = {0};
  f.gate = Gate::bounded;
  const double x[] = {-2, 0, 1, 3}, bounded[] = {-0.59601, -2.5, -3.65529, -4.76287};
  const double softplus[] = {-0.126928, -0.693147, -1.313262, -3.048587};
  for (int i = 0; i < 4; ++i) {
    in.a = {x[i]};
    f.gate = Gate::bounded;
    EXPECT_NEAR(log_decay(f, in, 0, 0, 0), bounded[i], 1e-5);
    f.gate = Gate::softplus;
    EXPECT_NEAR(log_decay(f, in, 0, 0, 0), softplus[i], 1e-5);
  }
  in.A_log = {std::log(2.0)};
  in.dt_bias = {1};
  in.a = {-1};
  EXPECT_NEAR(log_decay(f, in, 0, 0, 0), -2 * std::log(2.0), 1e-12);
  f.gate = Gate::bounded;
  in.a = {0};
  EXPECT_NEAR(log_decay(f, in, 0, 0, 0), -5 * sigmoid(2), 1e-12);
  f.beta = Beta::sigmoid2;
  EXPECT_NEAR(step_size(f, 0.5), 2 * 0.6224593312, 1e-9);
}

TEST(Judge, SlowDecay) {
  Form f;
  f.gate = Gate::precomputed;
  f.beta = Beta::none;
  Tokens in;
  in.q = in.k = in.v = {1};
  in.a = {std::log(0.99992)};
  in.b = {0};
  State state = {1};
  for (int i = 0; i < 4096; ++i) advance(f, in, 0, &state);
  EXPECT_NEAR(state[0], 0.72058, 1e-5);
}

TEST(Judge, Convolution) {
  EXPECT_NEAR(conv({1, 10, 100, 1000}, 0, {1, 2, 3, 4}), 4321, 1e-9);
  EXPECT_NEAR(conv({1, 1}, -3, {1, 2}), 0, 1e-12);
  EXPECT_NEAR(conv({0, 0, 1}, 0, {9, 9, 1}), 1 / (1 + std::exp(-1)), 1e-12);
}

TEST(Judge, Bf16) {
  Random r(1);
  for (int i = 0; i < 10000; ++i) {
    const double x = r.normal() * std::exp(4 * r.normal());
    EXPECT_EQ(round_bf16(x), decode_bf16(encode_bf16(double(float(round_bf16(x))))));
    EXPECT_NEAR(round_bf16(x), x, std::fabs(x) / 256);
  }
  EXPECT_EQ(round_bf16(1 + 1.0 / 256), 1);  // a tie goes to even
  EXPECT_EQ(round_bf16(1 + 3.0 / 256), 1 + 4.0 / 256);
}

TEST(Measure, CountsWhatIsWrong) {
  Measure m;
  m.add({1, 1}, {1, 1});
  EXPECT_TRUE(m.within(0));
  m.add({std::nan("")}, {1});
  EXPECT_FALSE(m.within(1e9));
  Measure one_bad_unit;
  for (int i = 0; i < 1000; ++i) one_bad_unit.add({1.0}, {1.0});
  one_bad_unit.add({1.01}, {1.0});
  EXPECT_FALSE(one_bad_unit.within(1e-3));
  Measure zero;
  zero.add({1e-30}, {0});
  EXPECT_FALSE(zero.within(1));
}

}  // namespace
}  // namespace judge
