// Tensors of an EAGLE-3 checkpoint, every one checked against the drafter's config and the target.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/result.h"
#include "model/matmul.h"
#include "model/speculation/eagle3_config.h"

namespace kda::speculation {

struct Eagle3Weights {
  model::Matrix fc;                  // [hidden, features * target hidden]
  model::Matrix q_proj;              // [heads * head_dim, 2 * hidden]
  model::Matrix k_proj, v_proj;      // [kv_heads * head_dim, 2 * hidden]
  model::Matrix o_proj;              // [hidden, heads * head_dim]
  model::Matrix gate_proj, up_proj;  // [intermediate, hidden]
  model::Matrix down_proj;           // [hidden, intermediate]
  model::Matrix lm_head;             // [draft vocabulary, hidden]; empty = the target's
  model::Matrix embedding;           // [vocabulary, hidden]; empty = the target's
  std::vector<float> hidden_norm, input_norm, post_attention_norm, final_norm;  // [hidden]
  std::vector<int32_t> target_token;  // [draft vocabulary] the target's id of each draft id; distinct

  // Keeps the mapped file, and copies of tensors that the file does not align.
  struct Storage;
  std::shared_ptr<const Storage> storage;

  // DIRECTORY/model.safetensors (or several with an index). features: how many feature layers the target gives.
  static io::Result<Eagle3Weights> load(const std::string& directory, const Eagle3Config& config, int features);
};

}  // namespace kda::speculation
