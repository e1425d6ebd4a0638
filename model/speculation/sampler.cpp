#include "model/speculation/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "model/ops.h"

namespace kda::speculation {

namespace {

uint64_t mix(uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Counter-based, so that a position's coin does not depend on how many coins were drawn before it.
double seeded_coin(uint64_t seed, uint64_t position) {
  const uint64_t bits = mix(mix(seed + 0x9e3779b97f4a7c15ull) + (position + 1) * 0x9e3779b97f4a7c15ull);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

// Index of the largest logit. Throws when that is not a number one can compare.
int32_t most_likely(std::span<const float> logits) {
  const int64_t best = model::argmax(logits.data(), static_cast<int64_t>(logits.size()));
  if (best < 0 || !std::isfinite(logits[best])) throw std::runtime_error("the model gave no finite logit");
  return static_cast<int32_t>(best);
}

}  // namespace

std::string sampler_error(const SamplerOptions& options) {
  if (!(options.temperature >= 0) || std::isinf(options.temperature)) {
    return "--temperature " + std::to_string(options.temperature) + " is not a number of 0 or more";
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return "--top-p " + std::to_string(options.top_p) + " is not above 0 and at most 1";
  }
  if (options.top_k < 0) return "--top-k " + std::to_string(options.top_k) + " is below 0 (0 = all tokens)";
  return "";
}

Sampler::Sampler(const SamplerOptions& options)
    : options_(options), coin_([seed = options.seed](uint64_t position) { return seeded_coin(seed, position); }) {}

double Sampler::filter(std::span<const float> logits) {
  const double top = logits[most_likely(logits)];
  kept_.resize(logits.size());
  std::iota(kept_.begin(), kept_.end(), 0);
  const auto likelier = [logits](int32_t a, int32_t b) {
    if (logits[a] != logits[b]) return logits[a] > logits[b];
    return a < b;
  };
  std::erase_if(kept_, [logits](int32_t token) { return std::isnan(logits[token]); });
  const size_t top_k = options_.top_k > 0 ? std::min<size_t>(options_.top_k, kept_.size()) : kept_.size();
  if (top_k < kept_.size() || options_.top_p < 1) {
    std::partial_sort(kept_.begin(), kept_.begin() + top_k, kept_.end(), likelier);
    kept_.resize(top_k);
  }
  weights_.resize(kept_.size());
  double sum = 0;
  for (size_t i = 0; i < kept_.size(); ++i) {
    weights_[i] = std::exp((logits[kept_[i]] - top) / options_.temperature);
    sum += weights_[i];
  }
  if (options_.top_p < 1) {
    const double wanted = options_.top_p * sum;
    double have = 0;
    size_t count = 0;
    while (count < kept_.size() && have < wanted) have += weights_[count++];
    kept_.resize(count);
    weights_.resize(count);
    sum = have;
  }
  return sum;
}

int32_t Sampler::choose(std::span<const float> logits, uint64_t position) {
  if (options_.temperature == 0) return most_likely(logits);
  const double wanted = coin_(position) * filter(logits);
  double below = 0;
  size_t last = 0;
  for (size_t i = 0; i < kept_.size(); ++i) {
    if (weights_[i] == 0) continue;
    below += weights_[i];
    last = i;
    if (wanted < below) break;
  }
  return kept_[last];  // rounding can leave `wanted` at the sum: then the last possible token
}

std::vector<double> Sampler::probabilities(std::span<const float> logits) {
  const double sum = filter(logits);
  std::vector<double> result(logits.size(), 0.0);
  for (size_t i = 0; i < kept_.size(); ++i) result[kept_[i]] = weights_[i] / sum;
  return result;
}

}  // namespace kda::speculation
