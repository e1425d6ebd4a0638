#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace kda::model {
namespace {

float widen_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu, fraction = half & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: fraction * 2^-24, exact
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t bits = exponent == 31 ? 0x7f800000u | fraction << 13 : (exponent + 112) << 23 | fraction << 13;
  return std::bit_cast<float>(sign | bits);
}

float element(const io::TensorInfo& tensor, int64_t i) {
  const std::byte* p = tensor.data.data() + i * io::size_of(tensor.type);
  if (tensor.type == io::TensorType::kF32) {
    float value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  if (tensor.type == io::TensorType::kF16) return widen_half(bits);
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

KdaWeights read_kda(WeightReader& reader, const std::string& prefix, const Config& config) {
  const int64_t heads = config.kda_heads, dim = config.kda_head_dim, all = heads * dim, hidden = config.hidden_size;
  KdaWeights w;
  w.q = reader.matrix(prefix + "q_proj.weight", all, hidden);
  w.k = reader.matrix(prefix + "k_proj.weight", all, hidden);
  w.v = reader.matrix(prefix + "v_proj.weight", all, hidden);
  w.f_a = reader.matrix(prefix + "f_a_proj.weight", dim, hidden);
  w.f_b = reader.matrix(prefix + "f_b_proj.weight", all, dim);
  if (config.full_rank_gate) {
    w.g_b = reader.matrix(prefix + "g_proj.weight", all, hidden);
  } else {
    w.g_a = reader.matrix(prefix + "g_a_proj.weight", dim, hidden);
    w.g_b = reader.matrix(prefix + "g_b_proj.weight", all, dim);
  }
  w.b = reader.matrix(prefix + "b_proj.weight", heads, hidden);
  w.o = reader.matrix(prefix + "o_proj.weight", hidden, all);
  for (const char* part : {"q", "k", "v"}) {
    const Floats conv =
        reader.floats(prefix + part + "_conv1d.weight", {{all, 1, config.conv_width}, {all, config.conv_width}});
    w.conv.insert(w.conv.end(), conv.begin(), conv.end());
  }
  w.a_log = reader.floats(prefix + "A_log", {{1, 1, heads, 1}, {heads}});
  w.dt_bias = reader.floats(prefix + "dt_bias", {{all}, {heads, dim}});
  w.o_norm = reader.vector(prefix + "o_norm.weight", dim);
  return w;
}

MlaWeights read_mla(WeightReader& reader, const std::string& prefix, const Config& config) {
  const int64_t heads = config.mla_heads, hidden = config.hidden_size;
  MlaWeights w;
  w.q = reader.matrix(prefix + "q_proj.weight", heads * (config.qk_nope_head_dim + config.qk_rope_head_dim), hidden);
  w.kv_a = reader.matrix(prefix + "kv_a_proj_with_mqa.weight", config.mla_cache_width(), hidden);
  w.kv_a_norm = reader.vector(prefix + "kv_a_layernorm.weight", config.kv_lora_rank);
  const int64_t nope = config.qk_nope_head_dim, value = config.v_head_dim;
  w.kv_b = reader.table(prefix + "kv_b_proj.weight", heads * (nope + value), config.kv_lora_rank);
  for (int64_t h = 0; h < heads && !w.kv_b.empty(); ++h) {
    w.keys.push_back(packed_transposed(w.kv_b.slice(h * (nope + value), nope), reader.panels()));
    w.values.push_back(packed(w.kv_b.slice(h * (nope + value) + nope, value), reader.panels()));
  }
  w.o = reader.matrix(prefix + "o_proj.weight", hidden, heads * config.v_head_dim);
  return w;
}

MlpWeights read_mlp(WeightReader& reader, const std::string& prefix, int64_t intermediate, int64_t hidden) {
  return {reader.matrix(prefix + "gate_proj.weight", intermediate, hidden),
          reader.matrix(prefix + "up_proj.weight", intermediate, hidden),
          reader.matrix(prefix + "down_proj.weight", hidden, intermediate)};
}

MoeWeights read_moe(WeightReader& reader, const std::string& layer, const Config& config) {
  const int64_t hidden = config.hidden_size, intermediate = config.moe_intermediate_size;
  const std::string prefix = layer + (reader.has(layer + "mlp.gate.weight") ? "mlp." : "block_sparse_moe.");
  MoeWeights w;
  w.router = reader.matrix(prefix + "gate.weight", config.num_experts, hidden);
  const std::string bias = prefix + "gate.e_score_correction_bias";
  w.correction_bias = reader.has(bias) ? reader.vector(bias, config.num_experts)
                                       : Floats(static_cast<size_t>(config.num_experts), 0.0f);
  for (int e = 0; e < config.num_experts && reader.error().empty(); ++e) {
    const std::string expert = fmt::format("{}experts.{}.", prefix, e);
    if (reader.has(expert + "gate_proj.weight")) {
      w.experts.push_back(read_mlp(reader, expert, intermediate, hidden));
    } else {
      w.experts.push_back({reader.matrix(expert + "w1.weight", intermediate, hidden),
                           reader.matrix(expert + "w3.weight", intermediate, hidden),
                           reader.matrix(expert + "w2.weight", hidden, intermediate)});
    }
  }
  if (config.shared_experts > 0) {
    w.shared = read_mlp(reader, prefix + "shared_experts.", config.shared_experts * intermediate, hidden);
  }
  return w;
}

}  // namespace

const io::TensorInfo* WeightReader::find(const std::string& name, const std::vector<io::Shape>& shapes) {
  if (!error_.empty()) return nullptr;
  const auto found = checkpoint_.require(name);
  if (!found) {
    error_ = found.error();
    return nullptr;
  }
  const io::TensorInfo* tensor = *found;
  if (std::find(shapes.begin(), shapes.end(), tensor->shape) != shapes.end()) return tensor;
  std::string expected;
  for (const io::Shape& shape : shapes) expected += (expected.empty() ? "" : " or ") + io::shape_text(shape);
  error_ = fmt::format("tensor {}: expected shape {} by config.json, found {}", name, expected,
                       io::shape_text(tensor->shape));
  return nullptr;
}

Matrix WeightReader::table(const std::string& name, int64_t outputs, int64_t inputs) {
  const io::TensorInfo* tensor = find(name, {{outputs, inputs}});
  if (tensor == nullptr) return {};
  const bool bf16 = tensor->type == io::TensorType::kBF16;
  if (!bf16 && tensor->type != io::TensorType::kF32) {
    error_ = fmt::format("tensor {}: expected BF16 or F32, found {}; convert the checkpoint to BF16", name,
                         io::name_of(tensor->type));
    return {};
  }
  const void* data = tensor->data.data();
  if (!tensor->aligned()) data = copies_->emplace_back(tensor->data.begin(), tensor->data.end()).data();
  return {data, bf16, outputs, inputs, inputs};
}

Floats WeightReader::floats(const std::string& name, const std::vector<io::Shape>& shapes) {
  const io::TensorInfo* tensor = find(name, shapes);
  if (tensor == nullptr) return {};
  if (tensor->type != io::TensorType::kBF16 && tensor->type != io::TensorType::kF32 &&
      tensor->type != io::TensorType::kF16) {
    error_ = fmt::format("tensor {}: expected F32, BF16 or F16, found {}", name, io::name_of(tensor->type));
    return {};
  }
  Floats values(static_cast<size_t>(tensor->elements));
  for (int64_t i = 0; i < tensor->elements; ++i) values[static_cast<size_t>(i)] = element(*tensor, i);
  return values;
}

io::Result<std::unique_ptr<ModelWeights>> ModelWeights::load(const std::string& directory, const Config& config) {
  auto checkpoint = io::Checkpoint::open(directory);
  if (!checkpoint) return io::Error{checkpoint.error()};
  auto weights = std::make_unique<ModelWeights>();
  weights->files.push_back(std::move(*checkpoint));
  WeightReader reader(weights->files.back(), &weights->copies, &weights->panels);

  const int64_t hidden = config.hidden_size;
  weights->embedding = reader.table("model.embed_tokens.weight", config.vocab_size, hidden);
  weights->lm_head = config.tie_word_embeddings ? packed(weights->embedding, &weights->panels)
                                                : reader.matrix("lm_head.weight", config.vocab_size, hidden);
  weights->final_norm = reader.vector("model.norm.weight", hidden);
  for (int i = 0; i < config.num_layers && reader.error().empty(); ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    LayerWeights layer;
    layer.input_norm = reader.vector(prefix + "input_layernorm.weight", hidden);
    layer.post_norm = reader.vector(prefix + "post_attention_layernorm.weight", hidden);
    if (config.layer_kinds[static_cast<size_t>(i)] == LayerKind::kda) {
      layer.kda = read_kda(reader, prefix + "self_attn.", config);
    } else {
      layer.mla = read_mla(reader, prefix + "self_attn.", config);
    }
    if (config.is_moe(i)) {
      layer.moe = read_moe(reader, prefix, config);
    } else {
      layer.mlp = read_mlp(reader, prefix + "mlp.", config.intermediate_size, hidden);
    }
    weights->layers.push_back(std::move(layer));
  }
  if (!reader.error().empty()) return io::Error{directory + ": " + reader.error()};
  return weights;
}

}  // namespace kda::model
