// The mixture of experts: a sigmoid router with a correction bias, grouped choice, and the experts' products.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/threads.h"
#include "model/weights.h"

namespace kda::model {

struct ExpertChoice {
  int32_t expert;
  float weight;
};

// Chooses experts_per_token experts from a row's router logits [num_experts], ascending by index. The bias takes part
// in the choice, not in the weight; of equal scores the lower index wins.
void route(const Config& config, const float* logits, const float* correction_bias, ExpertChoice* chosen);

// Scratch memory of an MLP for up to `rows` rows; grows as needed.
struct MlpScratch {
  std::vector<float> router, gate, up, gathered, down;
  std::vector<ExpertChoice> choices;  // [rows, experts_per_token]
  std::vector<int64_t> places;        // [rows, experts_per_token] row of each choice in the gathered rows
  std::vector<int64_t> first_place;   // [num_experts + 1]
};

// stream[r] += mlp(x[r]) for `rows` rows of hidden_size.
void run_mlp(const Threads& threads, const Config& config, const MlpWeights& weights, const float* x, int64_t rows,
             MlpScratch* scratch, float* stream);
void run_moe(const Threads& threads, const Config& config, const MoeWeights& weights, const float* x, int64_t rows,
             MlpScratch* scratch, float* stream);

}  // namespace kda::model
