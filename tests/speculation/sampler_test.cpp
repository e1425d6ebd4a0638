#include "model/speculation/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

namespace kda::speculation {
namespace {

using ::testing::HasSubstr;

SamplerOptions hot(double temperature) {
  SamplerOptions options;
  options.temperature = temperature;
  return options;
}

TEST(Sampler, GreedyTakesTheFirstOfTheLargest) {
  Sampler sampler{SamplerOptions{}};
  const float nan = std::nanf("");
  EXPECT_EQ(sampler.choose(std::vector<float>{1, 3, 3, 2}, 0), 1);
  EXPECT_EQ(sampler.choose(std::vector<float>{nan, -2, -1, nan}, 0), 2);
}

TEST(Sampler, RefusesLogitsWithoutANumber) {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  for (double temperature : {0.0, 1.0}) {
    Sampler sampler(hot(temperature));
    EXPECT_THROW(sampler.choose(std::vector<float>{nan, nan}, 0), std::runtime_error);
    EXPECT_THROW(sampler.choose(std::vector<float>{-infinity, -infinity}, 0), std::runtime_error);
    EXPECT_THROW(sampler.choose(std::vector<float>{0, infinity}, 0), std::runtime_error);
  }
}

TEST(Sampler, TemperatureIsADivisorOfLogits) {
  const std::vector<float> logits{0, 1, 2};
  Sampler sampler(hot(0.5));
  const std::vector<double> p = sampler.probabilities(logits);
  const double sum = 1 + std::exp(2.0) + std::exp(4.0);
  EXPECT_NEAR(p[0], 1 / sum, 1e-12);
  EXPECT_NEAR(p[1], std::exp(2.0) / sum, 1e-12);
  EXPECT_NEAR(p[2], std::exp(4.0) / sum, 1e-12);
}

TEST(Sampler, TopKThenTopP) {
  const std::vector<float> logits{std::log(0.1f), std::log(0.4f), std::log(0.3f), std::log(0.2f)};
  SamplerOptions options = hot(1);
  options.top_k = 3;
  Sampler three(options);
  EXPECT_NEAR(three.probabilities(logits)[1], 0.4 / 0.9, 1e-6);
  EXPECT_EQ(three.probabilities(logits)[0], 0);
  options.top_p = 0.75;  // of the three: 0.444 + 0.333 reaches it
  Sampler both(options);
  EXPECT_NEAR(both.probabilities(logits)[1], 0.4 / 0.7, 1e-6);
  EXPECT_NEAR(both.probabilities(logits)[2], 0.3 / 0.7, 1e-6);
  EXPECT_EQ(both.probabilities(logits)[3], 0);
  options.top_k = 0;
  options.top_p = 1e-9;  // never less than one token
  EXPECT_EQ(Sampler(options).probabilities(logits)[1], 1);
}

TEST(Sampler, CoinsCoverEachTokenAsOftenAsItsProbability) {
  const std::vector<float> logits{std::log(0.125f), -std::numeric_limits<float>::infinity(), std::log(0.625f),
                                  std::log(0.25f)};
  constexpr int kCoins = 4096;
  int counts[4] = {};
  for (int i = 0; i < kCoins; ++i) {
    Sampler sampler(hot(1), [i](uint64_t) { return (i + 0.5) / kCoins; });
    ++counts[sampler.choose(logits, 0)];
  }
  EXPECT_EQ(counts[0], kCoins / 8);
  EXPECT_EQ(counts[1], 0);
  EXPECT_EQ(counts[2], kCoins * 5 / 8);
  EXPECT_EQ(counts[3], kCoins / 4);
}

TEST(Sampler, ACoinAtTheEndNeverPicksAnImpossibleToken) {
  const std::vector<float> logits{0, 0, -std::numeric_limits<float>::infinity()};
  Sampler sampler(hot(1), [](uint64_t) { return std::nextafter(1.0, 0.0); });
  EXPECT_EQ(sampler.choose(logits, 0), 1);
}

// Chi-square of the seeded coins over positions and over seeds: 15 degrees of freedom, 60 has a chance below 1e-6.
TEST(Sampler, SeededCoinsAreUniform) {
  constexpr int kTokens = 16, kDraws = 64000;
  const std::vector<float> logits(kTokens, 0.0f);
  for (bool vary_seed : {false, true}) {
    std::vector<int> counts(kTokens, 0);
    for (int i = 0; i < kDraws; ++i) {
      SamplerOptions options = hot(1);
      options.seed = vary_seed ? i : 42;
      ++counts[Sampler(options).choose(logits, vary_seed ? 3 : i)];
    }
    double chi_square = 0;
    const double expected = static_cast<double>(kDraws) / kTokens;
    for (int count : counts) chi_square += (count - expected) * (count - expected) / expected;
    EXPECT_LT(chi_square, 60) << (vary_seed ? "over seeds" : "over positions");
    EXPECT_GT(chi_square, 1) << "too even to be random";
  }
}

TEST(Sampler, OptionsAreChecked) {
  EXPECT_EQ(sampler_error(hot(0.8)), "");
  EXPECT_THAT(sampler_error(hot(-1)), HasSubstr("--temperature"));
  EXPECT_THAT(sampler_error(hot(std::nan(""))), HasSubstr("--temperature"));
  EXPECT_THAT(sampler_error(hot(std::numeric_limits<double>::infinity())), HasSubstr("--temperature"));
  SamplerOptions options;
  options.top_p = 0;
  EXPECT_THAT(sampler_error(options), HasSubstr("--top-p"));
  options.top_p = 1.5;
  EXPECT_THAT(sampler_error(options), HasSubstr("--top-p"));
  options = {};
  options.top_k = -1;
  EXPECT_THAT(sampler_error(options), HasSubstr("--top-k"));
}

}  // namespace
}  // namespace kda::speculation
