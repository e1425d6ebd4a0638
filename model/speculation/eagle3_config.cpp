#include "model/speculation/eagle3_config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "io/file.h"

namespace kda::speculation {

namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxSize = int64_t{1} << 24;  // of one dimension: keeps every product of two inside int64
constexpr size_t kMaxAuxLayers = 16;

// Reads fields of one object and keeps the first error.
class Fields {
 public:
  Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  int64_t size(const char* name, int64_t fallback) {  // fallback 0: the field is required
    const auto field = object_.find(name);
    if (field == object_.end() || field->is_null()) {
      if (fallback == 0) fail(std::string("no field \"") + name + "\"");
      return fallback;
    }
    if (!field->is_number_integer() || field->get<double>() < 1 || field->get<double>() > kMaxSize) {
      fail(std::string(name) + ": expected a whole number between 1 and " + std::to_string(kMaxSize) + ", found " +
           found(*field));
      return 1;
    }
    return field->get<int64_t>();
  }

  double positive(const char* name, double fallback) {
    const auto field = object_.find(name);
    if (field == object_.end() || field->is_null()) return fallback;
    if (!field->is_number() || !(field->get<double>() > 0) || !std::isfinite(field->get<double>())) {
      fail(std::string(name) + ": expected a number above 0, found " + found(*field));
      return fallback;
    }
    return field->get<double>();
  }

  // Refuses any value but `wanted`; an absent or null field means `wanted`.
  void only(const char* name, const Json& wanted) {
    const auto field = object_.find(name);
    if (field == object_.end() || field->is_null() || *field == wanted) return;
    fail(std::string(name) + ": only " + wanted.dump() + " is supported, found " + found(*field));
  }

  void fail(const std::string& text) {
    if (error_.empty()) error_ = path_ + ": " + text;
  }
  const std::string& error() const { return error_; }

  static std::string found(const Json& value) {
    return io::printable(value.dump(-1, ' ', true, Json::error_handler_t::replace));
  }

 private:
  const Json& object_;
  std::string path_;
  std::string error_;
};

std::vector<int> read_aux_layers(const Json& root, Fields& fields) {
  constexpr const char* kName = "eagle_aux_hidden_state_layer_ids";
  const Json* list = root.contains(kName) ? &root[kName] : nullptr;
  if (root.contains("eagle_config")) {
    const Json& nested = root["eagle_config"];
    if (!nested.is_object()) {
      fields.fail("eagle_config: expected an object, found " + Fields::found(nested));
      return {};
    }
    if (nested.contains(kName)) list = &nested[kName];
    const auto use = nested.find("use_aux_hidden_state");
    if (use != nested.end() && *use != Json(true)) {
      fields.fail("use_aux_hidden_state: only true is supported, found " + Fields::found(*use));
      return {};
    }
  }
  if (list == nullptr || list->is_null()) return {};
  const std::string wrong =
      std::string(kName) + ": expected 1 to 16 ascending layer numbers, found " + Fields::found(*list);
  std::vector<int> layers;
  if (!list->is_array() || list->empty() || list->size() > kMaxAuxLayers) {
    fields.fail(wrong);
    return {};
  }
  for (const Json& entry : *list) {
    const bool whole = entry.is_number_integer() && entry.get<double>() >= 0 && entry.get<double>() <= 1e6;
    if (!whole || (!layers.empty() && entry.get<int>() <= layers.back())) {
      fields.fail(wrong);
      return {};
    }
    layers.push_back(entry.get<int>());
  }
  return layers;
}

}  // namespace

io::Result<Eagle3Config> Eagle3Config::parse(std::string_view json, const std::string& path) {
  const Json root = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return io::Error{path + ": expected a JSON object"};
  Fields fields(root, path);
  Eagle3Config config;
  config.hidden_size = fields.size("hidden_size", 0);
  config.intermediate_size = fields.size("intermediate_size", 0);
  config.heads = static_cast<int>(fields.size("num_attention_heads", 0));
  config.kv_heads = static_cast<int>(fields.size("num_key_value_heads", config.heads));
  config.head_dim =
      static_cast<int>(fields.size("head_dim", std::max<int64_t>(1, config.hidden_size / std::max(1, config.heads))));
  config.vocab_size = fields.size("vocab_size", 0);
  config.draft_vocab_size = fields.size("draft_vocab_size", config.vocab_size);
  config.target_hidden_size = fields.size("target_hidden_size", config.hidden_size);
  config.rms_norm_eps = fields.positive("rms_norm_eps", 1e-6);
  config.rope_theta = fields.positive("rope_theta", 10000);
  fields.only("num_hidden_layers", 1);
  fields.only("hidden_act", "silu");
  fields.only("rope_scaling", nullptr);
  fields.only("attention_bias", false);
  fields.only("mlp_bias", false);
  config.aux_layers = read_aux_layers(root, fields);
  if (fields.error().empty()) {
    if (config.heads % config.kv_heads != 0) {
      fields.fail("num_attention_heads " + std::to_string(config.heads) + " is not a multiple of num_key_value_heads " +
                  std::to_string(config.kv_heads));
    } else if (config.head_dim % 2 != 0) {
      fields.fail("head_dim " + std::to_string(config.head_dim) + " is odd; rotary positions need pairs");
    } else if (config.draft_vocab_size > config.vocab_size) {
      fields.fail("draft_vocab_size " + std::to_string(config.draft_vocab_size) + " is larger than vocab_size " +
                  std::to_string(config.vocab_size));
    }
  }
  if (!fields.error().empty()) return io::Error{fields.error()};
  return config;
}

io::Result<Eagle3Config> Eagle3Config::read(const std::string& path) {
  const io::Result<std::string> text = io::read_file(path);
  if (!text) return io::Error{text.error()};
  return parse(*text, path);
}

io::Result<std::vector<int>> Eagle3Config::feature_layers(int target_layers) const {
  std::vector<int> layers = aux_layers;
  if (layers.empty()) {
    // What EAGLE-3 training uses when nothing else is said.
    layers = {2, target_layers / 2, target_layers - 3};
    if (!(layers[0] < layers[1] && layers[1] < layers[2])) {
      return io::Error{
          "the drafter's config gives no eagle_aux_hidden_state_layer_ids, and the default low, middle and "
          "high layers need a target of 8 layers or more, found " +
          std::to_string(target_layers)};
    }
  }
  if (layers.back() > target_layers) {
    return io::Error{"the drafter reads the input of layer " + std::to_string(layers.back()) +
                     ", but the target has layers 0 to " + std::to_string(target_layers - 1)};
  }
  return layers;
}

}  // namespace kda::speculation
