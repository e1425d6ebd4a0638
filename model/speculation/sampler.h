// Chooses the next token from the target's logits. Plain decoding and verification use the same choice, which is what
// makes speculation lossless: a draft only decides which logits are known already, never which token is emitted.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace kda::speculation {

struct SamplerOptions {
  double temperature = 0;  // 0 = greedy: the largest logit, ties toward the smaller id
  double top_p = 1;        // smallest set of most likely tokens with at least this probability, after top_k
  int top_k = 0;           // only the k most likely tokens; 0 = all
  uint64_t seed = 0;
};

// Empty, or what is wrong with the options, naming option, value and limits.
std::string sampler_error(const SamplerOptions& options);

class Sampler {
 public:
  // A uniform number in [0, 1) for each output position.
  using Coin = std::function<double(uint64_t position)>;

  explicit Sampler(const SamplerOptions& options);
  // With other coins than the seed's.
  Sampler(const SamplerOptions& options, Coin coin) : options_(options), coin_(std::move(coin)) {}

  // The token at output position `position` (0 = the first generated token) given logits [vocabulary] of the token
  // before it. Depends on nothing but the options, the logits and the position, so the same seed gives the same tokens
  // with and without speculation. Throws std::runtime_error when no logit is finite.
  int32_t choose(std::span<const float> logits, uint64_t position);

  // The distribution that choose() draws from, [vocabulary]; temperature above 0.
  std::vector<double> probabilities(std::span<const float> logits);

 private:
  // Fills kept_ and weights_ with the tokens left by top_k and top_p and their probabilities up to a common factor;
  // returns the sum.
  double filter(std::span<const float> logits);

  SamplerOptions options_;
  Coin coin_;
  std::vector<int32_t> kept_;
  std::vector<double> weights_;
};

}  // namespace kda::speculation
