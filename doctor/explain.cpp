#include "explain.h"

#include <algorithm>
#include <cctype>
#include <set>

namespace kda::doctor {

namespace {

constexpr size_t kMaxQuery = 1 << 18;  // of a log the end, where its error is

// libkda's own records keep to what the C library needs; here they get the reference's form.
Json reference_form(const Json& own) {
  const std::string id = own.at("id"), way_out = own.value("way_out", "");
  const auto list = [&](const char* key, const std::string& otherwise) {
    return own.contains(key) ? own[key] : Json::array({otherwise});
  };
  Json out = {{"id", id},
              {"engine", "libkda"},
              {"versions", "*"},
              {"error_class", own.value("name", "")},
              {"message_pattern", own.value("message", "")},
              {"phase", own.value("phase", "")},
              {"when", own.value("phase", "") == "plan" ? "launch" : "per_call"},
              {"meaning", own.value("cause", "")},
              {"triggers", list("triggers", own.value("cause", ""))},
              {"situations",
               list("situations", own.value("phase", "") == "plan"
                                      ? "The plan is refused; the candidates of `kda plan` show which need is not met."
                                      : "The call returns the code, and nothing was launched.")},
              {"solutions", list("solutions", way_out)},
              {"related", own.value("related", Json::array())},
              {"tags", Json::array({"libkda", own.value("phase", "")})},
              {"source", own.value("source", "libkda, src/errors")}};
  out["example_fix"] = own.value("example_fix", Json{{"before", own.value("message", "")}, {"after", way_out}});
  out["validation"] =
      own.value("validation", Json{{"shell", "kda explain " + id},
                                   {"python", "import subprocess\nprint(subprocess.run([\"kda\", \"explain\", \"" + id +
                                                  "\"], capture_output=True, text=True).stdout)"}});
  return out;
}

}  // namespace

std::string simplify(std::string_view text) {
  std::string out;
  if (text.size() > kMaxQuery) text.remove_prefix(text.size() - kMaxQuery);
  for (char c : text) {
    if (std::isspace(static_cast<unsigned char>(c))) {
      if (!out.empty() && out.back() != ' ') out += ' ';
      continue;
    }
    if (c == '"' || c == '`') c = '\'';
    out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

Catalogue::Catalogue(const Resources& resources) {
  for (const std::string& name : resources.list("data/errors/")) {
    if (name == "data/errors/schema.json") continue;
    const Json file = resources.json(name);
    if (file.is_array()) {
      for (const Json& own : file) records_.push_back(reference_form(own));
    } else {
      for (const Json& record : file.at("records")) records_.push_back(record);
    }
  }
  std::sort(records_.begin(), records_.end(), [](const Json& a, const Json& b) { return a.at("id") < b.at("id"); });
  for (size_t r = 0; r < records_.size(); ++r) {
    std::vector<std::string> texts = {records_[r].at("message_pattern").get<std::string>()};
    if (records_[r].contains("also"))
      for (const Json& text : records_[r]["also"]) texts.push_back(text.get<std::string>());
    std::set<std::string> words;
    for (std::string text : texts) {
      constexpr std::string_view kOptionHole = "{flag}";
      const size_t hole = text.find(kOptionHole);
      if (hole != std::string::npos) text.replace(hole, kOptionHole.size(), kAnyOption);
      patterns_.push_back({r, hole != std::string::npos, MessagePattern(text)});
      for (const std::string& part : patterns_.back().message.parts())
        for (std::string& word : words_of(part)) words.insert(std::move(word));
    }
    for (const std::string& word : words) ++word_records_[word];
  }
  for (const std::string& name : resources.list("engines/")) {
    if (name == "engines/schema.json") continue;
    const Json engine = resources.json(name);
    std::vector<std::string>& flags = options_[engine.at("engine").get<std::string>()];
    for (const Json& option : engine.at("options"))
      for (const Json& flag : option.at("flags")) flags.push_back(comparable(flag.get<std::string>()));
    for (const Json& option : engine.at("other_options"))  // how many words it takes, then its names
      for (size_t i = 1; i < option.size(); ++i) flags.push_back(comparable(option[i].get<std::string>()));
    std::sort(flags.begin(), flags.end());
  }
}

const std::vector<std::string>& Catalogue::options_of(const std::string& engine) const {
  static const std::vector<std::string> none;
  const auto found = options_.find(engine);
  return found == options_.end() ? none : found->second;
}

const Json* Catalogue::find(std::string_view code) const {
  std::string wanted = simplify(code);
  const bool is_number = wanted.size() == 4 && wanted.find_first_not_of("0123456789") == std::string::npos;
  if (is_number) wanted = "kda-" + wanted;
  for (const Json& record : records_)
    if (simplify(record.at("id").get<std::string>()) == wanted || simplify(record.value("error_class", "")) == wanted)
      if (simplify(record.at("id").get<std::string>()) == wanted || wanted.rfind("kda_e_", 0) == 0) return &record;
  return nullptr;
}

std::string record_text(const Json& record) {
  std::string out;
  const auto text = [&](const char* key) { return record.value(key, ""); };
  out +=
      text("id") + "  (" + text("engine") + " " + text("versions") + ", " + text("phase") + ", " + text("when") + ")\n";
  out += text("error_class") + ": " + text("message_pattern") + "\n\n" + text("meaning") + "\n";
  const auto list = [&](const char* title, const char* key) {
    if (!record.contains(key) || record[key].empty()) return;
    out += "\n" + std::string(title) + "\n";
    for (const Json& item : record[key]) out += "  - " + item.get<std::string>() + "\n";
  };
  list("Triggers", "triggers");
  list("Situations", "situations");
  list("Solutions", "solutions");
  if (record.contains("example_fix"))
    out += "\nBefore\n  " + record["example_fix"].value("before", "") + "\nAfter\n  " +
           record["example_fix"].value("after", "") + "\n";
  if (record.contains("validation")) {
    std::string python = record["validation"].value("python", "");
    for (size_t at = python.find('\n'); at != std::string::npos; at = python.find('\n', at + 3))
      python.replace(at, 1, "\n  ");
    out += "\nCheck beforehand\n  " + record["validation"].value("shell", "") + "\n\nIn a launcher script\n  " +
           python + "\n";
  }
  if (record.contains("related") && !record["related"].empty()) {
    out += "\nRelated:";
    for (const Json& id : record["related"]) out += " " + id.get<std::string>();
    out += "\n";
  }
  out += "Source: " + text("source") + "\n";
  return out;
}

}  // namespace kda::doctor
