#include "arguments.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace kda::doctor {

namespace {

using Kind = OptionSpec::Kind;
using Type = OtherOption::Type;

// Edit distances cost time; nobody reads more suggestions.
constexpr size_t kMaxSuggestions = 16;
constexpr long long kIntLimit = 1000000000000000;

std::string_view strip(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

// Takes the underscores between digits out; false if one stands elsewhere.
bool without_underscores(std::string_view text, std::string& out) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const bool between = i > 0 && i + 1 < text.size() && std::isdigit(static_cast<unsigned char>(text[i - 1])) &&
                         std::isdigit(static_cast<unsigned char>(text[i + 1]));
    if (!between) return false;
  }
  return true;
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

// "8k", "1Mi", "25.6G", or a plain int.
bool human_int(std::string_view text) {
  long long n = 0;
  if (python_int(text, n)) return true;
  text = strip(text);
  const bool binary = text.size() > 2 && text.back() == 'i';
  if (binary) text.remove_suffix(1);
  if (text.size() < 2 || std::string_view(binary ? "KMGT" : "kMGT").find(text.back()) == std::string_view::npos)
    return false;
  text.remove_suffix(1);
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos) return all_digits(text);
  return !binary && all_digits(text.substr(0, dot)) && all_digits(text.substr(dot + 1));
}

std::string slashed(const std::vector<std::string>& flags) {
  std::string out;
  for (const std::string& flag : flags) out += (out.empty() ? "" : "/") + flag;
  return out;
}

bool is_shell_variable(std::string_view text) {
  for (size_t at = text.find('$'); at != std::string_view::npos; at = text.find('$', at + 1)) {
    if (at + 1 >= text.size()) return false;
    const char next = text[at + 1];
    if (std::isalpha(static_cast<unsigned char>(next)) || next == '_' || next == '{' || next == '(') return true;
  }
  return false;
}

class ArgumentReader {
 public:
  ArgumentReader(const Engine& engine, const ParsedCommand& command) : engine_(engine), command_(command) {}

  Arguments run() {
    ambiguous();
    for (const OptionUse& use : command_.uses) {
      if (!use.candidates.empty()) continue;
      if (std::find(engine_.parser.help.begin(), engine_.parser.help.end(), use.flag) != engine_.parser.help.end())
        throw UsageError("the command asks for help (" + use.flag + ") and starts no server: leave it out");
      if (use.spec >= 0)
        described(use, engine_.options[static_cast<size_t>(use.spec)]);
      else if (use.other >= 0)
        other(use, engine_.other_options[static_cast<size_t>(use.other)]);
      else
        unknown(use);
    }
    for (auto& [field, value] : dotted_) out_.values.emplace_back(field, std::move(value));
    required();
    strays();
    return std::move(out_);
  }

 private:
  std::string code(const char* kind) const {
    const auto at = engine_.parser.codes.find(kind);
    return at == engine_.parser.codes.end() ? std::string() : at->second;
  }
  void refuse(const char* kind, const std::string& field, std::string message, std::string reason) {
    out_.errors.push_back({code(kind), field, std::move(message), std::move(reason)});
  }
  // The parser's text for a bad value of one of the types whose texts differ between engines.
  std::string type_text(const char* type, const std::string& value) const {
    const auto at = engine_.parser.texts.find(type);
    if (at == engine_.parser.texts.end()) return "invalid loads value: " + python_repr(value);
    Scope scope;
    scope.set("value", value);
    return fill(at->second, scope);
  }

  // What the configuration says of a JSON value that is no object.
  std::string object_text(const std::string& field, const Json& value) const {
    const auto at = engine_.parser.texts.find("object " + field);
    if (at == engine_.parser.texts.end()) return {};
    Scope scope;
    scope.set("type", value.is_array()            ? "list"
                      : value.is_string()         ? "str"
                      : value.is_boolean()        ? "bool"
                      : value.is_number_integer() ? "int"
                                                  : "float");
    return fill(at->second, scope);
  }

  // Python's parser looks for these before it reads anything else.
  void ambiguous() {
    for (const OptionUse& use : command_.uses) {
      if (use.candidates.empty()) continue;
      std::string all;
      for (const std::string& name : use.candidates) all += (all.empty() ? "" : ", ") + name;
      refuse(
          "ambiguous", use.flag, "ambiguous option: " + command_.words[use.first] + " could match " + all,
          use.flag + " is the beginning of " + std::to_string(use.candidates.size()) + " options: write the name out");
    }
  }

  // Whether the number of words is what the option takes.
  bool count(const OptionUse& use, const std::vector<std::string>& flags, Arity arity, const std::string& field) {
    const std::string argument = "argument " + slashed(flags) + ": ";
    if (arity == Arity::kNone && use.joined) {
      refuse("flag_value", field, argument + "ignored explicit argument " + python_repr(use.value()),
             use.flag + " is a switch and takes no value: write " + use.flag + " alone");
      return false;
    }
    if ((arity == Arity::kOne || arity == Arity::kOneOrMore) && !use.has_value()) {
      const bool ends = use.last >= command_.options_end;
      refuse("missing", field,
             argument + (arity == Arity::kOne ? "expected one argument" : "expected at least one argument"),
             use.flag + " needs a value, and " +
                 (ends ? "the command ends behind it" : "\"" + command_.words[use.last] + "\" behind it is an option"));
      return false;
    }
    return true;
  }

  void described(const OptionUse& use, const OptionSpec& spec) {
    const bool flag = spec.kind == Kind::kFlag || spec.kind == Kind::kNegated;
    const Arity arity = flag ? Arity::kNone : spec.kind == Kind::kList ? Arity::kOneOrMore : Arity::kOne;
    if (!count(use, spec.flags, arity, spec.field)) return;
    if (flag) {
      out_.values.emplace_back(spec.field, spec.kind == Kind::kFlag);
      return;
    }
    const std::string value = use.value(), argument = "argument " + slashed(spec.flags) + ": ";
    const bool text = spec.kind == Kind::kText && spec.choices.empty() && spec.field != engine_.model_field;
    if (!text && is_shell_variable(value) && spec.kind != Kind::kJson)
      throw UsageError(use.flag + " is " + value + " here: write its value, the variables of your shell are not known");
    if (!use.subkey.empty()) {
      set_key(spec.field, use.subkey, value);
      return;
    }
    if (spec.kind == Kind::kInt) {
      long long n = 0;
      if (python_int(value, n))
        out_.values.emplace_back(spec.field, n);
      else
        refuse("value", spec.field, argument + "invalid int value: " + python_repr(value),
               use.flag + " takes a whole number");
    } else if (spec.kind == Kind::kFloat) {
      double x = 0;
      if (python_float(value, x))
        out_.values.emplace_back(spec.field, x);
      else
        refuse("value", spec.field, argument + "invalid float value: " + python_repr(value),
               use.flag + " takes a number");
    } else if (spec.kind == Kind::kJson) {
      json(use, spec, value, argument);
    } else if (!spec.choices.empty() &&
               std::find(spec.choices.begin(), spec.choices.end(), value) == spec.choices.end()) {
      std::string all;
      for (const std::string& choice : spec.choices) all += (all.empty() ? "" : ", ") + python_repr(choice);
      const std::string near = nearest(value, spec.choices);
      refuse("choice", spec.field, argument + "invalid choice: " + python_repr(value) + " (choose from " + all + ")",
             "\"" + value + "\" is not one of the values of " + spec.flags.front() +
                 (near.empty() ? "" : ": did you mean " + near + "?"));
    } else {
      out_.values.emplace_back(spec.field, value);
    }
  }

  void json(const OptionUse& use, const OptionSpec& spec, const std::string& value, const std::string& argument) {
    const auto& none = engine_.parser.none_texts;
    if (std::find(none.begin(), none.end(), value) != none.end()) {
      out_.values.emplace_back(spec.field, nullptr);
      return;
    }
    const std::optional<Json> parsed = parse_json(value);
    if (!parsed) {
      refuse("value", spec.field, argument + type_text("json", value),
             use.flag + " takes a JSON object, and this is none. In a shell it stands in single quotes: " + use.flag +
                 " '{\"key\": \"value\"}'");
    } else if (!parsed->is_object() && !parsed->is_null()) {
      refuse("object", spec.field, object_text(spec.field, *parsed),
             use.flag + " takes a JSON object {...}; this is " + (parsed->is_array() ? "a list" : "one value") +
                 ", which the parser lets pass and "
                 "the configuration behind it cannot use");
    } else {
      out_.values.emplace_back(spec.field, *parsed);
    }
  }

  // --config.key value: such keys together make an object of their own, which replaces a plain --config.
  void set_key(const std::string& field, std::string path, const std::string& text) {
    auto at = std::find_if(dotted_.begin(), dotted_.end(), [&](const auto& entry) { return entry.first == field; });
    if (at == dotted_.end()) at = dotted_.insert(dotted_.end(), {field, Json::object()});
    Json* place = &at->second;
    const bool list = !path.empty() && path.back() == '+';
    if (list) path.pop_back();
    for (size_t begin = 0, depth = 0; depth < 32; ++depth) {
      const size_t dot = path.find('.', begin);
      place = &(*place)[path.substr(begin, dot - begin)];
      if (dot == std::string::npos) break;
      if (!place->is_object()) *place = Json::object();
      begin = dot + 1;
    }
    if (list) {
      if (!place->is_array()) *place = Json::array();
      for (size_t begin = 0; begin <= text.size();) {
        const size_t comma = std::min(text.find(',', begin), text.size());
        place->push_back(text.substr(begin, comma - begin));
        begin = comma + 1;
      }
      return;
    }
    const std::optional<Json> value = parse_json(text);
    *place = value ? *value : Json(text);
  }

  void other(const OptionUse& use, const OtherOption& option) {
    if (!count(use, option.flags, option.arity, use.flag)) return;
    const std::string argument = "argument " + slashed(option.flags) + ": ";
    for (const std::string& value : use.values) {
      if (is_shell_variable(value)) continue;
      long long n = 0;
      double x = 0;
      std::string text;
      if (option.type == Type::kInt && !python_int(value, n)) text = "invalid int value: " + python_repr(value);
      if (option.type == Type::kFloat && !python_float(value, x)) text = "invalid float value: " + python_repr(value);
      if (option.type == Type::kHuman && !human_int(value)) text = type_text("human", value);
      if (option.type == Type::kJson && !parse_json(value)) text = type_text("json", value);
      if (option.type == Type::kJsonList && !parse_json(value)) text = type_text("json_list", value);
      if (text.empty()) continue;
      const bool is_json = option.type == Type::kJson || option.type == Type::kJsonList;
      refuse("value", use.flag, argument + text,
             use.flag + " takes " +
                 (is_json                       ? "JSON, and this is none. In a shell it stands in single quotes"
                  : option.type == Type::kFloat ? "a number"
                                                : "a whole number"));
      return;
    }
  }

  void unknown(const OptionUse& use) {
    std::string text = command_.words[use.first];
    for (size_t i = use.first + 1; i < use.last; ++i) text += " " + command_.words[i];
    if (out_.unknown.size() < kMaxSuggestions) {
      std::vector<std::string> names;
      for (const OptionName& name : engine_.option_index.names)
        if (!name.removed) names.push_back(name.name);
      const std::string near = nearest(use.flag, names);
      if (!near.empty()) text += " (did you mean " + near + "?)";
    }
    out_.unknown.push_back(text);
  }

  // Only a --model-config given beside the command lets a launch without model come this far.
  void required() {
    if (code("required").empty() || !command_.model.empty()) return;
    for (const OptionUse& use : command_.uses) {
      if (use.spec < 0) continue;
      const std::string& field = engine_.options[static_cast<size_t>(use.spec)].field;
      if (field == engine_.model_field || field == "config_file") return;
    }
    for (const OptionSpec& spec : engine_.options)
      if (spec.field == engine_.model_field)
        refuse("required", spec.field, "the following arguments are required: " + slashed(spec.flags),
               "the command names no model");
  }

  void strays() {
    if (command_.strays.empty()) return;
    for (const size_t at : command_.strays) out_.strays.push_back(command_.words[at]);
    const size_t first = command_.strays.front();
    const std::string& word = command_.words[first];
    if (is_shell_variable(word))
      throw UsageError("the word " + word +
                       " stands alone: write its value, the variables of your shell are not known");
    // The parser lists all that it does not know, in order.
    std::vector<size_t> places = command_.strays;
    if (engine_.parser.complete) {
      for (const OptionUse& use : command_.uses)
        for (size_t i = use.first; i < use.last && !use.known(); ++i) places.push_back(i);
      std::sort(places.begin(), places.end());
    }
    std::string all;
    for (const size_t at : places) all += " " + command_.words[at];
    const OptionUse* before = nullptr;
    for (const OptionUse& use : command_.uses)
      if (use.last == first) before = &use;
    std::string reason;
    if (!word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isspace(c); }))
      reason = "a backslash with a space behind it makes a word of that space and does not continue the line";
    else if (word.compare(0, 3, "\xE2\x80\x94") == 0 || word.compare(0, 3, "\xE2\x80\x93") == 0)
      reason = "\"" + word + "\" begins with a typographic dash: options begin with two plain ones";
    else if (word.empty())
      reason = "an empty word: a quoted variable that is not set?";
    else if (before && !before->has_value())
      reason = "\"" + word + "\" belongs to no option: " + before->flag + " before it is a switch and takes no value";
    else if (before)
      reason = "\"" + word + "\" belongs to no option: " + before->flag +
               " before it takes one value (quotes keep words together)";
    else
      reason = "\"" + word + "\" belongs to no option";
    refuse("unrecognized", "words", "unrecognized arguments:" + all, reason);
  }

  const Engine& engine_;
  const ParsedCommand& command_;
  Arguments out_;
  std::vector<std::pair<std::string, Json>> dotted_;
};

}  // namespace

bool python_int(std::string_view text, long long& value) {
  text = strip(text);
  const bool negative = !text.empty() && text.front() == '-';
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  std::string digits;
  if (!without_underscores(text, digits) || !all_digits(digits)) return false;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
  value = digits.size() > 15 ? kIntLimit : std::atoll(digits.c_str());
  if (negative) value = -value;
  return true;
}

bool python_float(std::string_view text, double& value) {
  std::string plain;
  if (!without_underscores(strip(text), plain) || plain.empty() || plain.size() > 400) return false;
  std::string lower;
  for (const char c : plain) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::string word = lower.substr(lower[0] == '-' || lower[0] == '+' ? 1 : 0);
  if (word != "inf" && word != "infinity" && word != "nan" &&
      !std::all_of(word.begin(), word.end(),
                   [](unsigned char c) { return std::isdigit(c) || c == '.' || c == 'e' || c == '+' || c == '-'; }))
    return false;
  char* end = nullptr;
  value = std::strtod(plain.c_str(), &end);
  return *end == '\0' && !word.empty();
}

std::string python_repr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos,
             has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == '\\' || c == quote) out += '\\';
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else
      out += c;
  }
  return out + quote;
}

Arguments read_arguments(const Engine& engine, const ParsedCommand& command) {
  return ArgumentReader(engine, command).run();
}

}  // namespace kda::doctor
