// config.json of a Kimi-Linear checkpoint, checked field by field. What this runner cannot do is refused by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/result.h"

namespace kda::model {

enum class LayerKind : uint8_t { kda, mla };

struct Config {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int num_layers = 0;
  int64_t intermediate_size = 0;  // of dense layers
  double rms_norm_eps = 1e-5;
  bool tie_word_embeddings = false;
  int64_t model_max_length = 0;
  int32_t bos_token = -1, eos_token = -1, pad_token = -1;  // -1 = not given
  std::vector<LayerKind> layer_kinds;                      // [num_layers]

  // KDA
  int kda_heads = 0;
  int kda_head_dim = 0;  // K = V
  int conv_width = 4;
  bool bounded_gate = false;    // linear_attn_config.gate_lower_bound is given
  double gate_lower_bound = 0;  // below 0
  bool full_rank_gate = false;  // g_proj instead of g_a_proj, g_b_proj

  // MLA without rotary positions
  int mla_heads = 0;
  int kv_lora_rank = 0;
  int qk_nope_head_dim = 0;
  int qk_rope_head_dim = 0;  // part of q and k shared by all heads, not rotated
  int v_head_dim = 0;

  // Experts
  int num_experts = 0;  // 0 = every layer is dense
  int experts_per_token = 0;
  int shared_experts = 0;
  int64_t moe_intermediate_size = 0;
  int first_dense_layers = 0;  // first_k_dense_replace
  int moe_layer_freq = 1;
  bool moe_renormalize = true;
  double routed_scaling_factor = 1;
  int expert_groups = 1;
  int expert_groups_per_token = 1;

  int64_t kda_channels() const { return 3 * int64_t{kda_heads} * kda_head_dim; }  // q|k|v of the convolution
  int mla_cache_width() const { return kv_lora_rank + qk_rope_head_dim; }
  bool is_moe(int layer) const { return num_experts > 0 && layer >= first_dense_layers && layer % moe_layer_freq == 0; }

  // `path` is used in messages only.
  static io::Result<Config> parse(std::string_view json, const std::string& path);
  static io::Result<Config> read(const std::string& path);
};

}  // namespace kda::model
