#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/file.h"

namespace kda::model {
namespace {

using nlohmann::json;

// Sizes beyond these are no model anyone has; the bounds keep products of two of them inside 64 bits.
constexpr int64_t kMaxSize = int64_t{1} << 28;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 65536;

// Reads fields and remembers the first complaint, so that reading is a list of lines. A field whose reading failed
// gives its fallback.
class Fields {
 public:
  Fields(const json& object, std::string prefix, std::string* error)
      : object_(object), prefix_(std::move(prefix)), error_(error) {}

  bool has(const char* name) const {
    const auto it = object_.find(name);
    return it != object_.end() && !it->is_null();
  }

  int64_t integer(const char* name, std::optional<int64_t> fallback, int64_t least, int64_t most) {
    const json* value = get(name, fallback.has_value());
    if (value == nullptr) return fallback.value_or(least);
    const bool whole = value->is_number_integer() ||
                       (value->is_number_float() && std::trunc(value->get<double>()) == value->get<double>());
    const double wide = whole ? value->get<double>() : 0;
    if (!whole || wide < static_cast<double>(least) || wide > static_cast<double>(most)) {
      complain(name, fmt::format("expected an integer from {} to {}", least, most), *value);
      return fallback.value_or(least);
    }
    return static_cast<int64_t>(wide);
  }
  int small(const char* name, std::optional<int64_t> fallback, int64_t least, int64_t most) {
    return static_cast<int>(integer(name, fallback, least, most));
  }

  double number(const char* name, double fallback, double least, double most) {
    const json* value = get(name, true);
    if (value == nullptr) return fallback;
    if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most)) {
      complain(name, fmt::format("expected a number from {} to {}", least, most), *value);
      return fallback;
    }
    return value->get<double>();
  }

  bool boolean(const char* name, bool fallback) {
    const json* value = get(name, true);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) {
      complain(name, "expected true or false", *value);
      return fallback;
    }
    return value->get<bool>();
  }

  // The field is absent, null, or one of these texts.
  void text_is(const char* name, std::initializer_list<const char*> allowed, bool required) {
    const json* value = get(name, !required);
    if (value == nullptr) return;
    std::string list;
    for (const char* text : allowed) {
      if (value->is_string() && value->get_ref<const std::string&>() == text) return;
      list += (list.empty() ? "\"" : " or \"") + std::string(text) + "\"";
    }
    complain(name, "expected " + list, *value);
  }

  // A feature that this runner does not have: the field must be absent, null, false or 0.
  void unsupported(const char* name, const char* what) {
    const auto it = object_.find(name);
    if (it == object_.end() || it->is_null() || (it->is_boolean() && !it->get<bool>()) ||
        (it->is_number() && it->get<double>() == 0)) {
      return;
    }
    refuse(fmt::format("{}{} is set: {} is not supported", prefix_, name, what));
  }

  std::vector<int64_t> integers(const char* name, int64_t least, int64_t most) {
    std::vector<int64_t> values;
    const json* list = get(name, false);
    if (list == nullptr) return values;
    if (!list->is_array()) {
      complain(name, "expected a list of integers", *list);
      return values;
    }
    for (const json& item : *list) {
      if (!item.is_number_integer() || item.get<double>() < static_cast<double>(least) ||
          item.get<double>() > static_cast<double>(most)) {
        complain(name, fmt::format("expected integers from {} to {}", least, most), item);
        return values;
      }
      values.push_back(item.get<int64_t>());
    }
    return values;
  }

  void refuse(const std::string& text) {
    if (error_->empty()) *error_ = text;
  }

 private:
  const json* get(const char* name, bool optional) {
    const auto it = object_.find(name);
    if (it != object_.end() && !it->is_null()) return &*it;
    if (!optional) refuse(fmt::format("{}{} is missing", prefix_, name));
    return nullptr;
  }
  void complain(const char* name, const std::string& expected, const json& found) {
    refuse(fmt::format("{}{}: {}, found {}", prefix_, name, expected,
                       io::printable(found.dump(-1, ' ', true, json::error_handler_t::replace), 60)));
  }

  const json& object_;
  std::string prefix_;
  std::string* error_;
};

// Token ids may be a list (several end tokens): the first counts.
int32_t token_id(const json& object, const char* name, int64_t vocab_size, Fields& fields) {
  const auto it = object.find(name);
  if (it == object.end() || it->is_null()) return -1;
  const json& value = it->is_array() && !it->empty() ? (*it)[0] : *it;
  if (!value.is_number_integer() || value.get<double>() < 0 || value.get<double>() >= static_cast<double>(vocab_size)) {
    fields.refuse(fmt::format("{}: expected a token id below vocab_size {}", name, vocab_size));
    return -1;
  }
  return value.get<int32_t>();
}

void read_layer_kinds(Fields& linear, Config* config) {
  const auto kda = linear.integers("kda_layers", 1, config->num_layers);
  const auto full = linear.integers("full_attn_layers", 1, config->num_layers);
  std::vector<int> uses(static_cast<size_t>(config->num_layers), 0);
  config->layer_kinds.assign(static_cast<size_t>(config->num_layers), LayerKind::kda);
  for (int64_t layer : kda) ++uses[static_cast<size_t>(layer - 1)];
  for (int64_t layer : full) {
    ++uses[static_cast<size_t>(layer - 1)];
    config->layer_kinds[static_cast<size_t>(layer - 1)] = LayerKind::mla;
  }
  for (size_t layer = 0; layer < uses.size(); ++layer) {
    if (uses[layer] == 1) continue;
    linear.refuse(
        fmt::format("linear_attn_config: layer {} (counted from 1) is named {} times in kda_layers and "
                    "full_attn_layers together, expected once",
                    layer + 1, uses[layer]));
    return;
  }
}

void read_linear_attention(const json& object, Config* config, std::string* error) {
  Fields linear(object, "linear_attn_config.", error);
  config->kda_heads = linear.small("num_heads", std::nullopt, 1, kMaxHeads);
  config->kda_head_dim = linear.small("head_dim", std::nullopt, 1, 256);
  config->conv_width = linear.small("short_conv_kernel_size", 4, 2, 4);
  config->full_rank_gate = linear.boolean("use_full_rank_gate", false);
  config->bounded_gate = linear.has("gate_lower_bound");
  if (config->bounded_gate) {
    config->gate_lower_bound = linear.number("gate_lower_bound", -5, -1000, -1e-6);
  }
  linear.unsupported("allow_neg_eigval", "a doubled step size");
  if (error->empty()) read_layer_kinds(linear, config);
}

void read_mla(Fields& fields, Config* config) {
  bool any =
      std::find(config->layer_kinds.begin(), config->layer_kinds.end(), LayerKind::mla) != config->layer_kinds.end();
  if (!any) return;
  config->mla_heads = fields.small("num_attention_heads", std::nullopt, 1, kMaxHeads);
  config->kv_lora_rank = fields.small("kv_lora_rank", std::nullopt, 1, 65536);
  config->qk_nope_head_dim = fields.small("qk_nope_head_dim", std::nullopt, 1, 65536);
  config->qk_rope_head_dim = fields.small("qk_rope_head_dim", std::nullopt, 0, 65536);
  config->v_head_dim = fields.small("v_head_dim", std::nullopt, 1, 65536);
  fields.unsupported("q_lora_rank", "a compressed query (q_a_proj, q_b_proj)");
  fields.unsupported("mla_use_output_gate", "an output gate on MLA layers");
  fields.unsupported("rope_scaling", "a rotary position");
  if (!fields.boolean("mla_use_nope", false)) {
    fields.refuse("mla_use_nope is not true: rotary positions on MLA layers are not supported");
  }
}

void read_experts(Fields& fields, Config* config) {
  config->num_experts = fields.small("num_experts", 0, 0, 65536);
  if (config->num_experts == 0) return;
  config->experts_per_token = fields.small("num_experts_per_token", std::nullopt, 1, config->num_experts);
  config->shared_experts = fields.small("num_shared_experts", 0, 0, 1024);
  config->moe_intermediate_size = fields.integer("moe_intermediate_size", std::nullopt, 1, kMaxSize);
  config->first_dense_layers = fields.small("first_k_dense_replace", 0, 0, kMaxLayers);
  config->moe_layer_freq = fields.small("moe_layer_freq", 1, 1, kMaxLayers);
  config->moe_renormalize = fields.boolean("moe_renormalize", true);
  config->routed_scaling_factor = fields.number("routed_scaling_factor", 1, 0, 1e6);
  fields.text_is("moe_router_activation_func", {"sigmoid"}, false);
  if (fields.boolean("use_grouped_topk", true)) {
    config->expert_groups = fields.small("num_expert_group", 1, 1, config->num_experts);
    config->expert_groups_per_token = fields.small("topk_group", 1, 1, config->expert_groups);
  }
  if (config->num_experts % config->expert_groups != 0) {
    fields.refuse(fmt::format("num_experts {} is not a multiple of num_expert_group {}", config->num_experts,
                              config->expert_groups));
  } else if (config->experts_per_token >
             config->num_experts / config->expert_groups * config->expert_groups_per_token) {
    fields.refuse(fmt::format("num_experts_per_token {} is more than the experts in {} of {} groups",
                              config->experts_per_token, config->expert_groups_per_token, config->expert_groups));
  }
}

}  // namespace

io::Result<Config> Config::parse(std::string_view text, const std::string& path) {
  const json object = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded() || !object.is_object()) return io::Error{path + ": not a JSON object"};
  std::string error;
  Fields fields(object, "", &error);
  fields.text_is("model_type", {"kimi_linear"}, true);
  fields.text_is("hidden_act", {"silu"}, false);
  fields.unsupported("quantization_config", "a quantised checkpoint");
  fields.unsupported("attn_res_block_size", "attention residuals");
  fields.unsupported("routed_expert_hidden_size", "latent experts");

  Config config;
  config.vocab_size = fields.integer("vocab_size", std::nullopt, 1, kMaxSize);
  config.hidden_size = fields.integer("hidden_size", std::nullopt, 1, kMaxSize);
  config.num_layers = fields.small("num_hidden_layers", std::nullopt, 1, kMaxLayers);
  config.intermediate_size = fields.integer("intermediate_size", std::nullopt, 1, kMaxSize);
  config.rms_norm_eps = fields.number("rms_norm_eps", 1e-6, 0, 1);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
  config.model_max_length = fields.integer("model_max_length", int64_t{1} << 20, 1, int64_t{1} << 40);
  config.bos_token = token_id(object, "bos_token_id", config.vocab_size, fields);
  config.eos_token = token_id(object, "eos_token_id", config.vocab_size, fields);
  config.pad_token = token_id(object, "pad_token_id", config.vocab_size, fields);

  const auto linear = object.find("linear_attn_config");
  if (linear == object.end() || !linear->is_object()) {
    fields.refuse("linear_attn_config is missing: not a model with KDA layers");
  } else if (error.empty()) {
    read_linear_attention(*linear, &config, &error);
  }
  if (error.empty()) read_mla(fields, &config);
  if (error.empty()) read_experts(fields, &config);
  if (!error.empty()) return io::Error{path + ": " + error};
  return config;
}

io::Result<Config> Config::read(const std::string& path) {
  auto text = io::read_file(path, size_t{16} << 20);
  if (!text) return io::Error{text.error()};
  return parse(*text, path);
}

}  // namespace kda::model
