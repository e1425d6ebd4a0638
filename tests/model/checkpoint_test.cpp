// Configurations and checkpoints that are wrong, each refused with one line that names what and where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "demo.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "model/model.h"
#include "model/moe.h"
#include "model/weights.h"

namespace kda::model {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json demo_config() { return json::parse(*io::read_file(demo_directory() + "/config.json")); }

std::string config_error(const json& config) {
  auto result = Config::parse(config.dump(), "FILE");
  return result.ok() ? std::string() : result.error();
}

// config.json with one field changed (a JSON pointer), or removed where `value` is discarded.
std::string error_with(const std::string& pointer, const json& value) {
  json config = demo_config();
  config[json::json_pointer(pointer)] = value;
  return config_error(config);
}
std::string error_without(const std::string& pointer) {
  json config = demo_config();
  const json::json_pointer p(pointer);
  config[p.parent_pointer()].erase(p.back());
  return config_error(config);
}

TEST(ConfigTest, ReadsTheDemoModel) {
  const auto config = Config::read(demo_directory() + "/config.json");
  ASSERT_TRUE(config.ok()) << config.error();
  EXPECT_EQ(config->num_layers, 8);
  EXPECT_EQ(config->layer_kinds[3], LayerKind::mla);  // layer lists count from 1
  EXPECT_EQ(config->layer_kinds[4], LayerKind::kda);
  EXPECT_EQ(config->kda_channels(), 768);
  EXPECT_EQ(config->mla_cache_width(), 96);
  EXPECT_FALSE(config->is_moe(0));
  EXPECT_TRUE(config->is_moe(1));
  EXPECT_FALSE(config->bounded_gate);
  EXPECT_EQ(config->eos_token, 3841);
}

TEST(ConfigTest, RefusesWhatItCannotDo) {
  EXPECT_EQ(config_error(demo_config()), "");
  EXPECT_THAT(error_with("/q_lora_rank", 1536), HasSubstr("q_lora_rank is set"));
  EXPECT_THAT(error_with("/mla_use_nope", false), HasSubstr("rotary"));
  EXPECT_THAT(error_without("/mla_use_nope"), HasSubstr("rotary"));
  EXPECT_THAT(error_with("/rope_scaling", {{"type", "yarn"}}), HasSubstr("rope_scaling"));
  EXPECT_THAT(error_with("/mla_use_output_gate", true), HasSubstr("output gate"));
  EXPECT_THAT(error_with("/attn_res_block_size", 12), HasSubstr("attention residuals"));
  EXPECT_THAT(error_with("/routed_expert_hidden_size", 3584), HasSubstr("latent experts"));
  EXPECT_THAT(error_with("/quantization_config", {{"bits", 4}}), HasSubstr("quantised"));
  EXPECT_THAT(error_with("/hidden_act", "situ"), HasSubstr("hidden_act: expected \"silu\", found \"situ\""));
  EXPECT_THAT(error_with("/moe_router_activation_func", "softmax"), HasSubstr("sigmoid"));
  EXPECT_THAT(error_with("/model_type", "llama"), HasSubstr("kimi_linear"));
  EXPECT_THAT(error_without("/linear_attn_config"), HasSubstr("linear_attn_config is missing"));
}

TEST(ConfigTest, RefusesBadValues) {
  EXPECT_THAT(error_without("/hidden_size"), HasSubstr("FILE: hidden_size is missing"));
  EXPECT_THAT(error_with("/hidden_size", -1), HasSubstr("hidden_size: expected an integer from 1"));
  EXPECT_THAT(error_with("/hidden_size", 1e30), HasSubstr("hidden_size"));
  EXPECT_THAT(error_with("/hidden_size", 12.5), HasSubstr("12.5"));
  EXPECT_THAT(error_with("/hidden_size", "256"), HasSubstr("found \"256\""));
  EXPECT_THAT(error_with("/num_hidden_layers", 9), HasSubstr("layer 9 (counted from 1) is named 0 times"));
  EXPECT_THAT(error_with("/num_hidden_layers", 7), HasSubstr("full_attn_layers"));
  EXPECT_THAT(error_with("/linear_attn_config/kda_layers", {1, 2, 3, 4, 5, 6, 7}), HasSubstr("layer 4"));
  EXPECT_THAT(error_with("/linear_attn_config/kda_layers", {0, 1}), HasSubstr("kda_layers"));
  EXPECT_THAT(error_with("/linear_attn_config/kda_layers", "all"), HasSubstr("list of integers"));
  EXPECT_THAT(error_with("/linear_attn_config/head_dim", 512), HasSubstr("linear_attn_config.head_dim"));
  EXPECT_THAT(error_with("/linear_attn_config/short_conv_kernel_size", 5), HasSubstr("short_conv_kernel_size"));
  EXPECT_THAT(error_with("/linear_attn_config/gate_lower_bound", 5), HasSubstr("gate_lower_bound"));
  EXPECT_THAT(error_with("/num_experts_per_token", 9), HasSubstr("num_experts_per_token"));
  EXPECT_THAT(error_with("/num_expert_group", 3), HasSubstr("not a multiple"));
  EXPECT_THAT(error_with("/bos_token_id", 4096), HasSubstr("bos_token_id"));
  EXPECT_THAT(Config::parse("{", "FILE").error(), HasSubstr("FILE: not a JSON object"));
  EXPECT_THAT(Config::parse("[]", "FILE").error(), HasSubstr("not a JSON object"));
  EXPECT_FALSE(Config::read("/nonexistent/config.json").ok());
}

TEST(ConfigTest, ReadsTheBoundedGate) {
  json config = demo_config();
  config["linear_attn_config"]["gate_lower_bound"] = -5.0;
  config["linear_attn_config"]["use_full_rank_gate"] = true;
  const auto parsed = Config::parse(config.dump(), "FILE");
  ASSERT_TRUE(parsed.ok()) << parsed.error();
  EXPECT_TRUE(parsed->bounded_gate);
  EXPECT_TRUE(parsed->full_rank_gate);
  EXPECT_EQ(parsed->gate_lower_bound, -5.0);
}

// A directory of its own, gone at the end.
class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    directory_ = std::filesystem::path(testing::TempDir()) / ("kda_checkpoint_" + std::string(test->name()));
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    std::filesystem::copy_file(demo_directory() + "/config.json", directory_ / "config.json");
    auto file = io::SafetensorsFile::open(demo_directory() + "/model.safetensors");
    ASSERT_TRUE(file.ok()) << file.error();
    file_ = std::move(*file);
    for (const io::TensorInfo& tensor : file_.tensors()) {
      tensors_.push_back({tensor.name, tensor.type, tensor.shape, tensor.data});
    }
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  io::TensorToWrite& tensor(const std::string& name) {
    for (io::TensorToWrite& t : tensors_) {
      if (t.name == name) return t;
    }
    throw std::runtime_error("no tensor " + name);
  }
  void remove(const std::string& name) {
    std::erase_if(tensors_, [&](const io::TensorToWrite& t) { return t.name == name; });
  }
  void write(const std::string& file = "model.safetensors") {
    const auto written = io::write_safetensors((directory_ / file).string(), tensors_, {});
    ASSERT_TRUE(written.ok()) << written.error();
  }
  std::string load_error() {
    auto model = Model::load(directory_.string(), {});
    const std::string error = model.ok() ? std::string() : model.error();
    EXPECT_EQ(error.find('\n'), std::string::npos) << "more than one line: " << error;
    return error;
  }

  std::filesystem::path directory_;
  io::SafetensorsFile file_;
  std::vector<io::TensorToWrite> tensors_;
};

TEST_F(CheckpointTest, MissingTensor) {
  remove("model.layers.3.self_attn.kv_b_proj.weight");
  write();
  EXPECT_THAT(load_error(), HasSubstr("model.layers.3.self_attn.kv_b_proj.weight"));
}

TEST_F(CheckpointTest, WrongShape) {
  tensor("model.layers.0.self_attn.q_proj.weight").shape = {128, 512};
  write();
  EXPECT_THAT(load_error(), HasSubstr("tensor model.layers.0.self_attn.q_proj.weight: expected shape [256, 256] by "
                                      "config.json, found [128, 512]"));
}

TEST_F(CheckpointTest, WrongShapeOfTheDecay) {
  tensor("model.layers.0.self_attn.A_log").shape = {2, 1};
  write();
  EXPECT_THAT(load_error(), HasSubstr("expected shape [1, 1, 2, 1] or [2] by config.json, found [2, 1]"));
}

TEST_F(CheckpointTest, HalfPrecisionMatrix) {
  tensor("lm_head.weight").type = io::TensorType::kF16;
  write();
  EXPECT_THAT(load_error(), HasSubstr("lm_head.weight: expected BF16 or F32, found F16; convert"));
}

TEST_F(CheckpointTest, IntegerVector) {
  tensor("model.norm.weight").type = io::TensorType::kI16;
  write();
  EXPECT_THAT(load_error(), HasSubstr("model.norm.weight"));
}

TEST_F(CheckpointTest, TruncatedFile) {
  write();
  std::filesystem::resize_file(directory_ / "model.safetensors", 1'000'000);
  EXPECT_THAT(load_error(), HasSubstr("model.safetensors"));
  std::filesystem::resize_file(directory_ / "model.safetensors", 5);
  EXPECT_THAT(load_error(), HasSubstr("model.safetensors"));
}

TEST_F(CheckpointTest, NoWeights) { EXPECT_THAT(load_error(), HasSubstr(directory_.string())); }

TEST_F(CheckpointTest, NoConfig) {
  std::filesystem::remove(directory_ / "config.json");
  EXPECT_THAT(load_error(), HasSubstr("config.json"));
}

TEST_F(CheckpointTest, FlatShapesAndTheOtherPrefixAreTheSameModel) {
  for (io::TensorToWrite& t : tensors_) {
    if (t.name.ends_with("A_log")) t.shape = {2};
    if (t.name.ends_with("conv1d.weight")) t.shape = {256, 4};
    if (const size_t at = t.name.find("block_sparse_moe."); at != std::string::npos) t.name.replace(at, 17, "mlp.");
  }
  write();
  auto model = Model::load(directory_.string(), {.backend = KDA_BACKEND_REFERENCE});
  ASSERT_TRUE(model.ok()) << model.error();
}

TEST_F(CheckpointTest, ShardedWithIndex) {
  const auto all = tensors_;
  json index;
  for (int part = 0; part < 2; ++part) {
    const std::string name = "model-0000" + std::to_string(part + 1) + "-of-00002.safetensors";
    tensors_.clear();
    for (size_t i = static_cast<size_t>(part); i < all.size(); i += 2) {
      tensors_.push_back(all[i]);
      index["weight_map"][all[i].name] = name;
    }
    write(name);
  }
  std::ofstream(directory_ / "model.safetensors.index.json") << index.dump();
  EXPECT_EQ(load_error(), "");
  std::filesystem::remove(directory_ / "model-00002-of-00002.safetensors");
  EXPECT_THAT(load_error(), HasSubstr("model-00002-of-00002.safetensors"));
}

// fp32 weights: the same values, so the same bits.
TEST_F(CheckpointTest, Fp32WeightsGiveTheSameLogits) {
  std::vector<std::vector<uint32_t>> wide;
  wide.reserve(tensors_.size());
  for (io::TensorToWrite& t : tensors_) {
    if (t.type != io::TensorType::kBF16) continue;
    std::vector<uint32_t>& bits = wide.emplace_back(t.data.size() / 2);
    for (size_t i = 0; i < bits.size(); ++i) {
      uint16_t half;
      std::memcpy(&half, t.data.data() + 2 * i, 2);
      bits[i] = static_cast<uint32_t>(half) << 16;
    }
    t.type = io::TensorType::kF32;
    t.data = std::as_bytes(std::span(bits));
  }
  write();
  std::vector<std::vector<float>> logits;
  for (const std::string& directory : {demo_directory(), directory_.string()}) {
    auto model = Model::load(directory, {.backend = KDA_BACKEND_REFERENCE});
    ASSERT_TRUE(model.ok()) << model.error();
    auto session = Session::create(**model);
    ASSERT_TRUE(session.ok()) << session.error();
    const auto row = (*session)->prefill(std::vector<int32_t>{3840, 1, 2, 3}, {});
    ASSERT_TRUE(row.ok()) << row.error();
    logits.emplace_back(row->logits.begin(), row->logits.end());
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST(RouteTest, BiasChoosesButDoesNotWeigh) {
  Config config;
  config.num_experts = 4;
  config.experts_per_token = 2;
  config.routed_scaling_factor = 3;
  const float logits[] = {0, 2, -1, 1}, bias[] = {0, 0, 5, 0};
  ExpertChoice chosen[2];
  route(config, logits, bias, chosen);
  EXPECT_EQ(chosen[0].expert, 1);  // ascending by index
  EXPECT_EQ(chosen[1].expert, 2);
  const double a = 1 / (1 + std::exp(-2.0)), b = 1 / (1 + std::exp(1.0));
  EXPECT_NEAR(chosen[0].weight, 3 * a / (a + b), 1e-6);
  EXPECT_NEAR(chosen[1].weight, 3 * b / (a + b), 1e-6);
  config.moe_renormalize = false;
  route(config, logits, bias, chosen);
  EXPECT_NEAR(chosen[1].weight, 3 * b, 1e-6);
}

TEST(RouteTest, GroupsAreChosenByTheirTwoBest) {
  Config config;
  config.num_experts = 6;
  config.experts_per_token = 2;
  config.expert_groups = 3;
  config.expert_groups_per_token = 1;
  // Group 1 has the best expert, group 2 the best pair.
  const float logits[] = {0, 0, 3, -9, 2, 2}, bias[6] = {};
  ExpertChoice chosen[2];
  route(config, logits, bias, chosen);
  EXPECT_EQ(chosen[0].expert, 4);
  EXPECT_EQ(chosen[1].expert, 5);
  // Equal experts: the lower index wins.
  const float equal[6] = {};
  route(config, equal, bias, chosen);
  EXPECT_EQ(chosen[0].expert, 0);
  EXPECT_EQ(chosen[1].expert, 1);
}

}  // namespace
}  // namespace kda::model
