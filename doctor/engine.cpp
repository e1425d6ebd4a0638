#include "engine.h"

#include <algorithm>
#include <sstream>

namespace kda::doctor {

namespace {

// Reads members of one description, with the file and row in every complaint.
class Reader {
 public:
  Reader(const Json& row, std::string where) : row_(row), where_(std::move(where)) {
    if (!row.is_object()) fail("an object is expected");
  }
  [[noreturn]] void fail(const std::string& what) const { throw DataError(where_ + ": " + what); }
  bool has(const char* key) const { return row_.contains(key); }
  const Json& at(const char* key) const {
    if (!row_.contains(key)) fail(std::string("\"") + key + "\" is missing");
    return row_[key];
  }
  std::string text(const char* key) const {
    const Json& value = at(key);
    if (!value.is_string()) fail(std::string("\"") + key + "\" is not a text");
    return value.get<std::string>();
  }
  std::string text_or(const char* key, const char* otherwise) const { return has(key) ? text(key) : otherwise; }
  bool flag(const char* key) const {
    if (!has(key)) return false;
    if (!row_[key].is_boolean()) fail(std::string("\"") + key + "\" is not true or false");
    return row_[key].get<bool>();
  }
  Expression expression(const char* key) const {
    if (!has(key)) return {};
    try {
      return Expression::parse(text(key));
    } catch (const ExpressionError& error) {
      fail(error.what());
    }
  }
  std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> out;
    if (!has(key)) return out;
    if (!row_[key].is_array()) fail(std::string("\"") + key + "\" is not a list");
    for (const Json& item : row_[key]) {
      if (!item.is_string()) fail(std::string("\"") + key + "\" holds something that is not a text");
      out.push_back(item.get<std::string>());
    }
    return out;
  }
  const Json& list(const char* key) const {
    static const Json empty = Json::array();
    if (!has(key)) return empty;
    if (!row_[key].is_array()) fail(std::string("\"") + key + "\" is not a list");
    return row_[key];
  }

 private:
  const Json& row_;
  std::string where_;
};

OptionSpec::Kind kind_of(const std::string& name, const Reader& reader) {
  using Kind = OptionSpec::Kind;
  static const std::pair<const char*, Kind> kinds[] = {
      {"text", Kind::kText},       {"int", Kind::kInt},   {"float", Kind::kFloat}, {"flag", Kind::kFlag},
      {"negated", Kind::kNegated}, {"json", Kind::kJson}, {"list", Kind::kList}};
  for (const auto& [text, kind] : kinds)
    if (name == text) return kind;
  reader.fail("unknown type \"" + name + "\"");
}

Consequence read_consequence(const Json& row, const std::string& where) {
  static const std::vector<std::string> outcomes = {"refused", "falls_back", "wrong", "unknown"};
  static const std::vector<std::string> moments = {"launch", "after_weights", "first_use", "per_call"};
  Reader reader(row, where);
  Consequence c;
  c.phase = reader.text_or("phase", "launch");
  c.outcome = reader.text_or("outcome", "refused");
  c.when = reader.text("when");
  if (std::find(outcomes.begin(), outcomes.end(), c.outcome) == outcomes.end())
    reader.fail("unknown outcome " + c.outcome);
  if (std::find(moments.begin(), moments.end(), c.when) == moments.end()) reader.fail("unknown moment " + c.when);
  c.code = reader.text_or("code", "");
  c.message = reader.text_or("message", "");
  c.reason = reader.text("reason");
  c.to = reader.text_or("to", "");
  c.logged = reader.flag("logged");
  if ((c.outcome == "falls_back") != !c.to.empty()) reader.fail("\"to\" belongs to falls_back and only there");
  return c;
}

OtherOption read_other(const Json& row, const Reader& reader) {
  using Type = OtherOption::Type;
  static const std::pair<const char*, Arity> arities[] = {{"0", Arity::kNone},
                                                          {"1", Arity::kOne},
                                                          {"+", Arity::kOneOrMore},
                                                          {"*", Arity::kAnyNumber},
                                                          {"?", Arity::kOptional}};
  static const std::pair<const char*, Type> types[] = {{"", Type::kText},        {":int", Type::kInt},
                                                       {":float", Type::kFloat}, {":human", Type::kHuman},
                                                       {":json", Type::kJson},   {":json_list", Type::kJsonList}};
  OtherOption option;
  option.flags = row.get<std::vector<std::string>>();
  if (option.flags.size() < 2) reader.fail("a row of other_options is too short");
  const std::string form = option.flags.front();
  option.flags.erase(option.flags.begin());
  const auto arity =
      std::find_if(std::begin(arities), std::end(arities), [&](const auto& a) { return form.substr(0, 1) == a.first; });
  const auto type = std::find_if(std::begin(types), std::end(types),
                                 [&](const auto& t) { return !form.empty() && form.substr(1) == t.first; });
  if (arity == std::end(arities) || type == std::end(types))
    reader.fail("other_options: unknown form \"" + form + "\"");
  option.arity = arity->second;
  option.type = type->second;
  return option;
}

std::map<std::string, std::string> read_texts(const Reader& reader, const char* key) {
  std::map<std::string, std::string> out;
  if (!reader.has(key)) return out;
  if (!reader.at(key).is_object()) reader.fail(std::string("\"") + key + "\" is not an object");
  for (const auto& [name, value] : reader.at(key).items()) {
    if (!value.is_string()) reader.fail(std::string("\"") + key + "\" holds something that is not a text");
    out[name] = value.get<std::string>();
  }
  return out;
}

OptionSpec read_option(const Json& row, const std::string& where) {
  Reader reader(row, where);
  OptionSpec option;
  option.flags = reader.texts("flags");
  if (option.flags.empty()) reader.fail("\"flags\" is empty");
  option.field = reader.text("field");
  option.kind = kind_of(reader.text_or("type", "text"), reader);
  const bool flag = option.kind == OptionSpec::Kind::kFlag || option.kind == OptionSpec::Kind::kNegated;
  option.preset = row.value("default", flag ? Json(false) : Json());
  option.choices = reader.texts("choices");
  option.removed = reader.flag("removed");
  return option;
}

std::vector<std::pair<std::string, std::string>> read_pairs(const Reader& reader, const char* key) {
  std::vector<std::pair<std::string, std::string>> out;
  if (!reader.has(key)) return out;
  const Json& object = reader.at(key);
  if (!object.is_object()) reader.fail(std::string("\"") + key + "\" is not an object");
  for (const auto& [name, value] : object.items())
    out.emplace_back(name, value.is_string() ? value.get<std::string>() : "");
  return out;
}

}  // namespace

bool version_in(std::string_view version, std::string_view range) {
  std::istringstream parts{std::string(range)};
  std::string part;
  while (parts >> part) {
    if (part == "*") continue;
    size_t length = 0;
    while (length < part.size() && std::string_view("<>=").find(part[length]) != std::string_view::npos) ++length;
    const std::string op = part.substr(0, length);
    const int order = compare_versions(version, part.substr(length));
    const bool fits = op == "<"    ? order < 0
                      : op == "<=" ? order <= 0
                      : op == ">"  ? order > 0
                      : op == ">=" ? order >= 0
                                   : order == 0;
    if (!fits) return false;
  }
  return true;
}

std::vector<Launcher> read_launchers(const Json& description, const std::string& file) {
  static const std::pair<const char*, ModelWord> words[] = {{"none", ModelWord::kNone},
                                                            {"first", ModelWord::kFirst},
                                                            {"any", ModelWord::kAny},
                                                            {"any_unless_option", ModelWord::kAnyUnlessOption}};
  std::vector<Launcher> launchers;
  for (const Json& row : Reader(description, file).list("launchers")) {
    Reader reader(row, file + ": launchers");
    Launcher launcher{reader.texts("words"), ModelWord::kNone};
    const std::string word = reader.text_or("model_word", "none");
    const auto at = std::find_if(std::begin(words), std::end(words), [&](const auto& w) { return word == w.first; });
    if (launcher.words.empty() || at == std::end(words)) reader.fail("words or model_word is not as it should be");
    launcher.model_word = at->second;
    launchers.push_back(std::move(launcher));
  }
  return launchers;
}

ParserRules Engine::rules(const ParsedCommand& command) const {
  return {parser.underscores, parser.dotted_keys, launchers[command.launcher].model_word, model_field};
}

bool parse_command(const Engine& engine, const std::vector<std::string>& words, ParsedCommand& command) {
  if (find_launcher(words, engine.launchers, command) < 0) return false;
  parse_options(engine.options, engine.option_index, engine.rules(command), command);
  return true;
}

Engine load_engine(const Json& description, const std::string& version, const std::string& file) {
  Reader reader(description, file);
  Engine engine;
  engine.name = reader.text("engine");
  engine.title = reader.text("title");
  const std::vector<std::string> described = reader.texts("described");
  if (described.empty()) reader.fail("\"described\" is empty");
  engine.newest = described.back();
  engine.version = version.empty() ? engine.newest : version;
  engine.described = std::any_of(described.begin(), described.end(), [&](const std::string& known) {
    return compare_versions(known, engine.version) == 0;
  });
  // A version newer than all described is read with the newest description; its answers are then marked unknown.
  const std::string read_as = compare_versions(engine.version, engine.newest) > 0 ? engine.newest : engine.version;
  const auto applies = [&](const Json& row) {
    return !row.is_object() || !row.contains("versions") || !row["versions"].is_string() ||
           version_in(read_as, row["versions"].get<std::string>());
  };
  const auto ranged = [&](const Json& row) {
    // ">=" was written before the versions after the newest one existed: it says nothing about them
    return row.contains("versions") && compare_versions(engine.version, engine.newest) <= 0 &&
           version_in(engine.version, row["versions"].get<std::string>());
  };

  engine.launchers = read_launchers(description, file);
  engine.model_field = reader.text("model_field");
  Reader parser(reader.at("parser"), file + ": parser");
  engine.parser.codes = read_texts(parser, "codes");
  engine.parser.texts = read_texts(parser, "texts");
  engine.parser.none_texts = parser.texts("none_texts");
  engine.parser.help = parser.texts("help");
  engine.parser.underscores = parser.flag("underscores");
  engine.parser.dotted_keys = parser.flag("dotted_keys");
  engine.parser.complete = parser.flag("complete");
  for (const Json& row : reader.list("options"))
    if (applies(row)) engine.options.push_back(read_option(row, file + ": options"));
  for (const Json& row : reader.list("other_options")) {
    engine.other_options.push_back(read_other(row, reader));
  }
  if (!engine.parser.help.empty()) engine.other_options.push_back({engine.parser.help, Arity::kNone, {}});
  engine.option_index = index_options(engine.options, engine.other_options);
  for (const Json& row : reader.list("environment")) {
    Reader r(row, file + ": environment");
    engine.environment.push_back(
        {r.text("name"), r.text("field"), kind_of(r.text_or("type", "text"), r), row.value("default", Json())});
  }
  for (const Json& row : reader.list("steps")) {
    if (!applies(row)) continue;
    const std::string id = Reader(row, file + ": steps").text("id");
    Reader r(row, file + ": step " + id);
    Step step;
    step.id = id;
    step.source = r.text("source");
    step.when = r.expression("when");
    if (r.has("set")) {
      for (const auto& [name, text] : r.at("set").items()) {
        try {
          step.set.emplace_back(name, Expression::parse(text.get<std::string>()));
        } catch (const ExpressionError& error) {
          r.fail(error.what());
        }
      }
    }
    step.note = r.text_or("note", "");
    step.note_phase = r.text_or("note_phase", "");
    if (r.has("error")) {
      step.has_error = true;
      step.error = read_consequence(r.at("error"), file + ": step " + id);
    }
    step.ranged = ranged(row);
    step.witness = row.value("witness", Json());
    engine.steps.push_back(std::move(step));
  }
  for (const Json& row : reader.list("phases")) {
    Reader r(row, file + ": phases");
    engine.phases.push_back({r.text("phase"), r.expression("when"), r.text_or("unused", ""), r.expression("requested"),
                             r.expression("named"), r.expression("kernel")});
  }
  for (const Json& row : reader.list("kernels")) {
    if (!applies(row)) continue;
    Reader r(row, file + ": kernels");
    Kernel kernel;
    kernel.phase = r.text("phase");
    kernel.name = r.text("kernel");
    kernel.resolved = r.text_or("resolved", kernel.name.c_str());
    kernel.reason = r.text_or("reason", "");
    kernel.source = r.text("source");
    kernel.ranged = ranged(row);
    const std::string where = file + ": kernel " + kernel.phase + "/" + kernel.name;
    for (const Json& need : r.list("needs")) {
      if (!applies(need)) continue;
      Reader n(need, where);
      Need out;
      out.id = n.text("id");
      out.source = n.text_or("source", kernel.source.c_str());
      out.need = n.expression("need");
      out.otherwise = read_consequence(n.at("else"), where + ", need " + out.id);
      out.otherwise.phase = kernel.phase;
      out.ranged = ranged(need) || kernel.ranged;
      out.witness = need.value("witness", Json());
      kernel.needs.push_back(std::move(out));
    }
    for (const Json& variant : r.list("variants")) {
      Reader v(variant, where);
      kernel.variants.push_back({v.expression("when"), v.text("resolved"), v.text_or("reason", "")});
    }
    engine.kernels.push_back(std::move(kernel));
  }
  if (reader.has("resolved")) {
    for (const auto& [name, text] : reader.at("resolved").items()) {
      try {
        engine.resolved.emplace_back(name, Expression::parse(text.get<std::string>()));
      } catch (const ExpressionError& error) {
        reader.fail(error.what());
      }
    }
  }
  for (const Json& row : reader.list("edits")) {
    if (!applies(row)) continue;
    Reader r(row, file + ": edits");
    engine.edits.push_back({r.text("id"), r.text("why"), r.expression("when"), read_pairs(r, "set"), r.texts("unset"),
                            read_pairs(r, "environment"), row.value("cost", 1.0)});
  }
  return engine;
}

}  // namespace kda::doctor
