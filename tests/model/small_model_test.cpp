// A small random model of every form that the built-in one lacks: bounded gate, full-rank output gate, grouped experts,
// several dense layers, two shared experts, head sizes that fill no vector, tied embeddings.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "io/safetensors.h"
#include "model/model.h"

namespace kda::model {
namespace {

constexpr char kConfig[] = R"({
  "model_type": "kimi_linear", "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 4, "intermediate_size": 20,
  "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "model_max_length": 64, "mla_use_nope": true,
  "num_attention_heads": 3, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 5, "v_head_dim": 7,
  "linear_attn_config": {"num_heads": 3, "head_dim": 9, "short_conv_kernel_size": 3, "kda_layers": [1, 3, 4],
                         "full_attn_layers": [2], "gate_lower_bound": -5.0, "use_full_rank_gate": true},
  "num_experts": 6, "num_experts_per_token": 2, "num_shared_experts": 2, "moe_intermediate_size": 11,
  "first_k_dense_replace": 2, "moe_layer_freq": 1, "num_expert_group": 3, "topk_group": 2,
  "routed_scaling_factor": 1.5})";

class SmallModel {
 public:
  SmallModel() {
    directory_ = std::filesystem::path(testing::TempDir()) / "kda_small_model";
    std::filesystem::create_directories(directory_);
    std::ofstream(directory_ / "config.json") << kConfig;
    add("model.embed_tokens.weight", {50, 24});
    add("model.norm.weight", {24});
    for (int i = 0; i < 4; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".", attention = layer + "self_attn.";
      add(layer + "input_layernorm.weight", {24});
      add(layer + "post_attention_layernorm.weight", {24});
      if (i == 1) {
        add_all(attention, {{"q_proj.weight", {33, 24}},
                            {"kv_a_proj_with_mqa.weight", {15, 24}},
                            {"kv_a_layernorm.weight", {10}},
                            {"kv_b_proj.weight", {39, 10}},
                            {"o_proj.weight", {24, 21}}});
      } else {
        add_all(attention, {{"q_proj.weight", {27, 24}},
                            {"k_proj.weight", {27, 24}},
                            {"v_proj.weight", {27, 24}},
                            {"q_conv1d.weight", {27, 3}},
                            {"k_conv1d.weight", {27, 3}},
                            {"v_conv1d.weight", {27, 1, 3}},
                            {"f_a_proj.weight", {9, 24}},
                            {"f_b_proj.weight", {27, 9}},
                            {"g_proj.weight", {27, 24}},
                            {"b_proj.weight", {3, 24}},
                            {"A_log", {3}},
                            {"dt_bias", {27}},
                            {"o_norm.weight", {9}},
                            {"o_proj.weight", {24, 27}}});
      }
      if (i < 2) {
        add_mlp(layer + "mlp.", 20);
      } else {
        add(layer + "mlp.gate.weight", {6, 24});
        add(layer + "mlp.gate.e_score_correction_bias", {6});
        add_mlp(layer + "mlp.shared_experts.", 22);
        for (int e = 0; e < 6; ++e) add_mlp(layer + "mlp.experts." + std::to_string(e) + ".", 11);
      }
    }
    std::vector<io::TensorToWrite> list;
    for (const Tensor& t : tensors_) {
      list.push_back({t.name, io::TensorType::kBF16, t.shape, std::as_bytes(std::span(t.bits))});
    }
    const auto written = io::write_safetensors((directory_ / "model.safetensors").string(), list, {});
    EXPECT_TRUE(written.ok()) << written.error();
  }
  ~SmallModel() { std::filesystem::remove_all(directory_); }

  std::unique_ptr<Model> load(kda_backend backend) const {
    auto model = Model::load(directory_.string(), {.backend = backend, .threads = 2, .feature_layers = {0, 4}});
    if (!model.ok()) throw std::runtime_error(model.error());
    return std::move(*model);
  }

 private:
  struct Tensor {
    std::string name;
    io::Shape shape;
    std::vector<uint16_t> bits;
  };
  void add(const std::string& name, const io::Shape& shape) {
    int64_t elements = 1;
    for (int64_t d : shape) elements *= d;
    std::normal_distribution<float> normal(0, 0.5f);
    std::vector<uint16_t> bits;
    for (int64_t i = 0; i < elements; ++i) {
      bits.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random_)) >> 16));
    }
    tensors_.push_back({name, shape, std::move(bits)});
  }
  void add_all(const std::string& prefix, const std::vector<std::pair<const char*, io::Shape>>& tensors) {
    for (const auto& [name, shape] : tensors) add(prefix + name, shape);
  }
  void add_mlp(const std::string& prefix, int64_t width) {
    add_all(prefix,
            {{"gate_proj.weight", {width, 24}}, {"up_proj.weight", {width, 24}}, {"down_proj.weight", {24, width}}});
  }

  std::filesystem::path directory_;
  std::mt19937 random_{3};
  std::vector<Tensor> tensors_;
};

std::vector<float> copy(std::span<const float> values) { return {values.begin(), values.end()}; }

TEST(SmallModelTest, BackendsAgreeAndDraftsEqualDecoding) {
  const SmallModel files;
  const std::vector<int32_t> prompt{3, 1, 4, 1, 5, 9, 2, 6}, draft{5, 3, 5, 8, 9, 7}, parents{-1, 0, 0, 1, 2, 4};
  std::vector<std::vector<float>> logits;
  for (const kda_backend backend : {KDA_BACKEND_CPU, KDA_BACKEND_REFERENCE}) {
    const auto model = files.load(backend);
    EXPECT_EQ(model->lm_head().data, model->embedding().data);
    auto session = std::move(*Session::create(*model)), plain = std::move(*Session::create(*model));
    ASSERT_TRUE(session->prefill(prompt, {}).ok());
    const auto rows = session->verify(draft, parents);
    ASSERT_TRUE(rows.ok()) << rows.error();
    ASSERT_TRUE(plain->prefill(prompt, {}).ok());
    for (const int32_t node : {0, 2, 4, 5}) {  // the path to node 5
      const auto row = plain->step(draft[static_cast<size_t>(node)]);
      ASSERT_TRUE(row.ok()) << row.error();
      EXPECT_EQ(copy(row->logits), copy(rows->logits_row(node))) << "node " << node;
      EXPECT_EQ(copy(row->features), copy(rows->features_row(node))) << "node " << node;
    }
    logits.push_back(copy(rows->logits));
  }
  for (size_t i = 0; i < logits[0].size(); ++i) {
    ASSERT_TRUE(std::isfinite(logits[0][i]));
    ASSERT_NEAR(logits[0][i], logits[1][i], 1e-4);
  }
}

TEST(SmallModelTest, TheSequenceEndsAtItsLongest) {
  const SmallModel files;
  const auto model = files.load(KDA_BACKEND_CPU);
  auto session = std::move(*Session::create(*model));
  ASSERT_TRUE(session->prefill(std::vector<int32_t>(63, 1), {}).ok());
  EXPECT_FALSE(session->verify(std::vector<int32_t>{1, 2}, std::vector<int32_t>{-1, 0}).ok());
  EXPECT_TRUE(session->verify(std::vector<int32_t>{1, 2}, std::vector<int32_t>{-1, -1}).ok());  // both are the last
  EXPECT_TRUE(session->step(1).ok());
  EXPECT_EQ(session->step(1).error(), "the sequence would have 65 tokens; model_max_length is 64");
}

}  // namespace
}  // namespace kda::model
