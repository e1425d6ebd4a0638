#include "model/moe.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/ops.h"
#include "model/scratch.h"

namespace kda::model {
namespace {

constexpr float kWorst = -std::numeric_limits<float>::infinity();

// Keeps the groups whose two best scores have the largest sums; all experts of the others become unchoosable.
void keep_best_groups(const Config& config, std::vector<float>* scores) {
  const int size = config.num_experts / config.expert_groups;
  std::vector<float> value(static_cast<size_t>(config.expert_groups));
  for (int g = 0; g < config.expert_groups; ++g) {
    float best = kWorst, second = kWorst;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      const float s = (*scores)[static_cast<size_t>(e)];
      if (s > best) {
        second = best;
        best = s;
      } else if (s > second) {
        second = s;
      }
    }
    value[static_cast<size_t>(g)] = size > 1 ? best + second : best;
  }
  for (int drop = config.expert_groups - config.expert_groups_per_token; drop > 0; --drop) {
    int worst = -1;  // of equal groups the later one goes
    for (int g = 0; g < config.expert_groups; ++g) {
      const float v = value[static_cast<size_t>(g)];
      if (v != kWorst && (worst < 0 || v <= value[static_cast<size_t>(worst)])) worst = g;
    }
    if (worst < 0) return;
    value[static_cast<size_t>(worst)] = kWorst;
    std::fill_n(scores->begin() + worst * size, size, kWorst);
  }
}

void run_silu_mul(const Threads& threads, float* gate, const float* up, int64_t rows, int64_t width) {
  constexpr int64_t kRowsAPiece = 16;
  threads.parallel_for((rows + kRowsAPiece - 1) / kRowsAPiece, [&](int64_t piece) {
    const int64_t first = piece * kRowsAPiece, count = std::min(kRowsAPiece, rows - first);
    silu_mul(gate + first * width, up + first * width, count * width, gate + first * width);
  });
}

// Sorts the rows' choices by expert: places[i] is the gathered row of choice i, first_place[e] expert e's first.
void sort_choices(const Config& config, int64_t choices, MlpScratch* scratch) {
  int64_t* first = at_least(&scratch->first_place, config.num_experts + 1);
  int64_t* places = at_least(&scratch->places, choices);
  std::fill_n(first, config.num_experts + 1, 0);
  const auto expert_of = [&](int64_t i) { return scratch->choices[static_cast<size_t>(i)].expert; };
  for (int64_t i = 0; i < choices; ++i) places[i] = first[expert_of(i) + 1]++;
  for (int e = 0; e < config.num_experts; ++e) first[e + 1] += first[e];
  for (int64_t i = 0; i < choices; ++i) places[i] += first[expert_of(i)];
}

}  // namespace

void route(const Config& config, const float* logits, const float* correction_bias, ExpertChoice* chosen) {
  const auto experts = static_cast<size_t>(config.num_experts);
  static thread_local std::vector<float> weight, score;  // no allocation a token
  weight.assign(logits, logits + experts);
  sigmoid(weight.data(), config.num_experts);
  score.resize(experts);
  for (size_t e = 0; e < experts; ++e) score[e] = weight[e] + correction_bias[e];
  if (config.expert_groups > 1) keep_best_groups(config, &score);
  float sum = 0;
  for (int i = 0; i < config.experts_per_token; ++i) {
    size_t best = 0;
    for (size_t e = 1; e < experts; ++e) {
      if (score[e] > score[best]) best = e;
    }
    score[best] = kWorst;
    chosen[i] = {static_cast<int32_t>(best), weight[best]};
  }
  std::sort(chosen, chosen + config.experts_per_token,
            [](const ExpertChoice& a, const ExpertChoice& b) { return a.expert < b.expert; });
  for (int i = 0; i < config.experts_per_token; ++i) sum += chosen[i].weight;
  const bool renormalise = config.moe_renormalize && config.experts_per_token > 1;
  for (int i = 0; i < config.experts_per_token; ++i) {
    if (renormalise) chosen[i].weight /= sum + 1e-20f;
    chosen[i].weight *= static_cast<float>(config.routed_scaling_factor);
  }
}

void run_mlp(const Threads& threads, const Config& config, const MlpWeights& weights, const float* x, int64_t rows,
             MlpScratch* scratch, float* stream) {
  const int64_t hidden = config.hidden_size, width = weights.gate.outputs;
  float* gate = at_least(&scratch->gate, rows * width);
  float* up = at_least(&scratch->up, rows * width);
  const Product inner[] = {{x, hidden, rows, weights.gate, gate, width}, {x, hidden, rows, weights.up, up, width}};
  run_products(threads, inner);
  run_silu_mul(threads, gate, up, rows, width);
  run_product(threads, {gate, width, rows, weights.down, stream, hidden, /*accumulate=*/true});
}

void run_moe(const Threads& threads, const Config& config, const MoeWeights& weights, const float* x, int64_t rows,
             MlpScratch* scratch, float* stream) {
  const int64_t hidden = config.hidden_size, width = config.moe_intermediate_size, experts = config.num_experts;
  const int64_t each = config.experts_per_token, choices = rows * each;
  const int64_t shared_width = weights.shared.gate.outputs;
  float* router = at_least(&scratch->router, rows * experts);
  // The shared expert's rows first, then the gathered rows of the chosen ones.
  float* gate = at_least(&scratch->gate, rows * shared_width + choices * width);
  float* up = at_least(&scratch->up, rows * shared_width + choices * width);
  float* down = at_least(&scratch->down, choices * hidden);
  float* gathered = at_least(&scratch->gathered, choices * hidden);
  at_least(&scratch->choices, choices);

  static thread_local std::vector<Product> products;  // no allocation a token
  products.clear();
  products.push_back({x, hidden, rows, weights.router, router, experts});
  if (shared_width > 0) {
    products.push_back({x, hidden, rows, weights.shared.gate, gate, shared_width});
    products.push_back({x, hidden, rows, weights.shared.up, up, shared_width});
  }
  run_products(threads, products);
  for (int64_t r = 0; r < rows; ++r) {
    route(config, router + r * experts, weights.correction_bias.data(), scratch->choices.data() + r * each);
  }
  sort_choices(config, choices, scratch);
  for (int64_t i = 0; i < choices; ++i) {
    std::copy_n(x + i / each * hidden, hidden, gathered + scratch->places[static_cast<size_t>(i)] * hidden);
  }

  float* expert_gate = gate + rows * shared_width;
  float* expert_up = up + rows * shared_width;
  products.clear();
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t first = scratch->first_place[static_cast<size_t>(e)];
    const int64_t count = scratch->first_place[static_cast<size_t>(e) + 1] - first;
    if (count == 0) continue;
    const MlpWeights& expert = weights.experts[static_cast<size_t>(e)];
    products.push_back({gathered + first * hidden, hidden, count, expert.gate, expert_gate + first * width, width});
    products.push_back({gathered + first * hidden, hidden, count, expert.up, expert_up + first * width, width});
  }
  run_products(threads, products);
  run_silu_mul(threads, gate, up, rows, shared_width);
  run_silu_mul(threads, expert_gate, expert_up, choices, width);

  products.clear();
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t first = scratch->first_place[static_cast<size_t>(e)];
    const int64_t count = scratch->first_place[static_cast<size_t>(e) + 1] - first;
    if (count == 0) continue;
    products.push_back({expert_gate + first * width, width, count, weights.experts[static_cast<size_t>(e)].down,
                        down + first * hidden, hidden});
  }
  if (shared_width > 0) {
    products.push_back({gate, shared_width, rows, weights.shared.down, stream, hidden, /*accumulate=*/true});
  }
  run_products(threads, products);
  // One order for every row: the shared expert, then the chosen ones by index.
  for (int64_t i = 0; i < choices; ++i) {
    add_scaled(down + scratch->places[static_cast<size_t>(i)] * hidden, scratch->choices[static_cast<size_t>(i)].weight,
               hidden, stream + i / each * hidden);
  }
}

}  // namespace kda::model
