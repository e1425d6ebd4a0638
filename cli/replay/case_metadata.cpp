// The kda.* keys of a replay file. Absent = default; unknown = refused, because a key that is not understood may change
// what the call means.
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/context.h"
#include "cli/replay/case.h"

namespace kda::cli::replay {
namespace {

constexpr std::pair<const char*, int> kOperations[] = {
    {"extend", KDA_EXTEND},           {"decode", KDA_DECODE},
    {"verify", KDA_VERIFY},           {"verify_pending", KDA_VERIFY_PENDING},
    {"commit", KDA_COMMIT},           {"move", KDA_MOVE},
    {"conv_extend", KDA_CONV_EXTEND}, {"conv_decode", KDA_CONV_DECODE},
    {"conv_verify", KDA_CONV_VERIFY}, {"conv_verify_pending", KDA_CONV_VERIFY_PENDING},
    {"conv_commit", KDA_CONV_COMMIT}, {"conv_move", KDA_CONV_MOVE},
};
constexpr std::pair<const char*, int> kGates[] = {
    {"softplus", KDA_GATE_SOFTPLUS}, {"bounded", KDA_GATE_BOUNDED}, {"precomputed", KDA_GATE_PRECOMPUTED}};
constexpr std::pair<const char*, int> kBetas[] = {
    {"sigmoid", KDA_BETA_SIGMOID}, {"sigmoid2", KDA_BETA_SIGMOID2}, {"none", KDA_BETA_NONE}};
constexpr std::pair<const char*, int> kLayouts[] = {{"vk", KDA_STATE_VK}, {"kv", KDA_STATE_KV}};
constexpr std::pair<const char*, int> kFlags[] = {{"0", 0}, {"1", 1}};
constexpr std::pair<const char*, int> kNumerics[] = {{"exact", KDA_EXACT}, {"fast", KDA_FAST}};
constexpr std::pair<const char*, int> kBackends[] = {
    {"reference", KDA_BACKEND_REFERENCE}, {"cpu", KDA_BACKEND_CPU}, {"cuda", KDA_BACKEND_CUDA}};

// One value out of a table of words. False with `expected` set if it is none of them.
template <size_t N>
bool read_word(const std::string& text, const std::pair<const char*, int> (&words)[N], int* value,
               std::string* expected) {
  for (const auto& [word, meaning] : words) {
    if (text == word) {
      *value = meaning;
      return true;
    }
  }
  for (const auto& [word, meaning] : words) *expected += (expected->empty() ? "" : "|") + std::string(word);
  return false;
}

bool read_flag(const std::string& text, bool* value, std::string* expected) {
  int number = 0;
  if (!read_word(text, kFlags, &number, expected)) return false;
  *value = number != 0;
  return true;
}

bool read_number(const std::string& text, double* value) {
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return fault == std::errc() && end == text.data() + text.size() && std::isfinite(*value);
}

bool read_dtype(const nlohmann::json& json, int32_t* dtype) {
  if (!json.is_string()) return false;
  const auto& name = json.get_ref<const std::string&>();
  *dtype = name == "fp32" ? KDA_FP32 : name == "bf16" ? KDA_BF16 : name == "fp16" ? KDA_FP16 : 0;
  return *dtype != 0;
}

// kda.plan: the text of kda_plan_describe. Only the geometry and the maxima are read; the rest is for people.
bool read_plan(const std::string& text, RecordedPlan* plan, std::string* expected) {
  constexpr int kMaxDepth = 16;
  bool too_deep = false;
  const auto watch = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep |= depth > kMaxDepth;
    return !too_deep;
  };
  const auto json = nlohmann::json::parse(text, watch, /*allow_exceptions=*/false);
  *expected = "the JSON object of a plan";
  if (too_deep || !json.is_object()) return false;
  plan->present = true;
  const auto found = json.find("problem");
  const nlohmann::json& problem = found != json.end() && found->is_object() ? *found : json;
  const auto integer = [&](const char* key, auto* value) {
    const auto it = problem.find(key);
    if (it == problem.end()) return true;
    using Number = std::remove_pointer_t<decltype(value)>;
    *expected = std::string("'") + key + "' to be a non-negative integer";
    if (!it->is_number_integer()) return false;
    const auto number = it->is_number_unsigned() ? it->template get<uint64_t>() : ~uint64_t{0};
    if (number > static_cast<uint64_t>(std::numeric_limits<Number>::max())) return false;
    *value = static_cast<Number>(number);
    return true;
  };
  const auto dtype = [&](const char* key, int32_t* value) {
    const auto it = problem.find(key);
    if (it == problem.end()) return true;
    *expected = std::string("'") + key + "' to be fp32, bf16 or fp16";
    return read_dtype(*it, value);
  };
  return integer("max_rows", &plan->max_rows) && integer("max_tokens", &plan->max_tokens) &&
         integer("max_nodes", &plan->max_nodes) && integer("max_snapshots", &plan->max_snapshots) &&
         integer("layers", &plan->layers) && integer("heads", &plan->heads) &&
         integer("value_heads", &plan->value_heads) && integer("key_dim", &plan->key_dim) &&
         integer("value_dim", &plan->value_dim) && integer("conv_width", &plan->conv_width) &&
         dtype("io_dtype", &plan->io_dtype) && dtype("gate_dtype", &plan->gate_dtype) &&
         dtype("beta_dtype", &plan->beta_dtype);
}

// False if the key is unknown or its value is not what `expected` then says.
bool read_key(Case& replay, const std::string& key, const std::string& text, std::string* expected) {
  if (key == "kda.replay") {
    *expected = "1, the version of the form this program reads";
    return text == "1";
  }
  if (key == "kda.op") return read_word(text, kOperations, &replay.operation, expected);
  if (key == "kda.gate") return read_word(text, kGates, &replay.gate, expected);
  if (key == "kda.beta") return read_word(text, kBetas, &replay.beta, expected);
  if (key == "kda.state_layout") return read_word(text, kLayouts, &replay.state_layout, expected);
  if (key == "kda.numerics") return read_word(text, kNumerics, &replay.numerics, expected);
  if (key == "kda.backend") return read_word(text, kBackends, &replay.backend, expected);
  if (key == "kda.qk_l2norm") return read_flag(text, &replay.qk_l2norm, expected);
  if (key == "kda.null_slot0") return read_flag(text, &replay.null_slot0, expected);
  if (key == "kda.single_root") return read_flag(text, &replay.single_root, expected);
  if (key == "kda.plan") return read_plan(text, &replay.plan, expected);
  if (key == "kda.target") {
    *expected = "the name of a SIMD target or GPU architecture";
    replay.target = text;
    return !text.empty() && text.size() <= 64 && text.find('\0') == std::string::npos;
  }
  if (key == "kda.scale") {
    *expected = "a finite number other than 0";
    return read_number(text, &replay.scale) && replay.scale != 0;
  }
  if (key == "kda.lower_bound") {
    *expected = "a finite number below 0";
    // Only the bounded gate reads it. Keys come sorted, so the gate is known here.
    return read_number(text, &replay.lower_bound) && (replay.gate != KDA_GATE_BOUNDED || replay.lower_bound < 0);
  }
  *expected = "only keys of the replay form";
  return false;
}

}  // namespace

const char* operation_name(int operation) {
  for (const auto& [name, value] : kOperations) {
    if (value == operation) return name;
  }
  return "?";
}

io::Outcome read_metadata(Case& replay) {
  const auto fail = [&](const std::string& text) { return io::Error{io::printable(replay.file.path()) + ": " + text}; };
  const auto& metadata = replay.file.metadata();
  for (const char* required : {"kda.replay", "kda.op"}) {
    if (metadata.count(required) == 0) {
      return fail(std::string("expected the metadata key '") + required + "', found none (not a replay file)");
    }
  }
  for (const auto& [key, text] : metadata) {
    if (key.rfind("kda.", 0) != 0) continue;  // other programs' keys, such as "format"
    std::string expected;
    if (!read_key(replay, key, text, &expected)) {
      return fail("metadata key '" + io::printable(key) + "': expected " + expected + ", found '" +
                  io::printable(text, 60) + "'");
    }
  }
  return io::Done{};
}

}  // namespace kda::cli::replay
