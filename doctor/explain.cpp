#include "explain.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "command_line.h"

namespace kda::doctor {

namespace {

constexpr size_t kMinLetters = 11;       // a pattern with fewer fixed letters would match almost anything
constexpr size_t kMaxQuery = 1 << 18;    // a traceback; more is cut
constexpr double kSimilarEnough = 0.45;  // share of a pattern's words

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '_') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

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
  for (char c : text.substr(0, kMaxQuery)) {
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
    for (const std::string& text : texts) {
      Pattern pattern;
      pattern.record = r;
      size_t at = 0;
      while (at <= text.size()) {
        const size_t open = text.find('{', at);
        const size_t close = open == std::string::npos ? open : text.find('}', open);
        const bool hole = close != std::string::npos;
        std::string part = simplify(text.substr(at, hole ? open - at : std::string::npos));
        if (!part.empty() && part != "." && part != ". ") {
          pattern.letters += part.size();
          pattern.parts.push_back(std::move(part));
        }
        if (!hole) break;
        at = close + 1;
      }
      if (!pattern.parts.empty()) patterns_.push_back(std::move(pattern));
    }
  }
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

std::vector<Match> Catalogue::search(std::string_view query) const {
  std::vector<Match> matches;
  if (const Json* record = find(query)) return {{record, 1e9, true}};
  const std::string text = simplify(query);
  if (text.empty()) return matches;
  std::vector<double> best(records_.size(), 0);
  for (const Pattern& pattern : patterns_) {
    size_t at = 0;
    bool all = true;
    for (const std::string& part : pattern.parts) {
      const size_t found = text.find(part, at);
      if (found == std::string::npos) {
        all = false;
        break;
      }
      at = found + part.size();
    }
    if (!all) continue;
    // A short pattern must be all there is; a long one may sit anywhere in a traceback.
    if (pattern.letters < kMinLetters && pattern.letters + 8 < text.size()) continue;
    best[pattern.record] = std::max(best[pattern.record], static_cast<double>(pattern.letters));
  }
  for (size_t r = 0; r < records_.size(); ++r)
    if (best[r] > 0) matches.push_back({&records_[r], best[r], true});
  // Codes named inside a longer text, e.g. a log line of libkda.
  for (const Json& record : records_) {
    const std::string id = simplify(record.at("id").get<std::string>());
    const size_t found = text.find(id);
    if (found == std::string::npos) continue;
    const size_t end = found + id.size();
    const auto is_word = [&](size_t i) {
      return i < text.size() && (std::isalnum(static_cast<unsigned char>(text[i])) || text[i] == '-');
    };
    if (!is_word(end) && (found == 0 || !is_word(found - 1))) matches.push_back({&record, 1e6, true});
  }
  if (matches.empty() && text.find(' ') == std::string::npos) {  // one word: a mistyped code
    for (const Json& record : records_) {
      const std::string id = simplify(record.at("id").get<std::string>());
      const size_t distance = edit_distance(text, id);
      const bool is_near = distance <= std::max<size_t>(1, id.size() / 4);
      if (is_near) matches.push_back({&record, 1.0 / static_cast<double>(1 + distance), false});
    }
  }
  if (matches.empty() && text.find(' ') != std::string::npos) {  // a message that was cut or reworded: compare words
    const std::vector<std::string> list = words_of(text);
    const std::set<std::string> words(list.begin(), list.end());
    std::vector<double> similar(records_.size(), 0);
    for (const Pattern& pattern : patterns_) {
      size_t total = 0, hit = 0;
      for (const std::string& part : pattern.parts)
        for (const std::string& word : words_of(part)) {
          if (word.size() < 3) continue;
          ++total;
          hit += words.count(word);
        }
      if (total < 2 || hit < 2) continue;
      // either most of the pattern is in the text, or most of the text is in the pattern
      const double share =
          std::max(static_cast<double>(hit) / static_cast<double>(total),
                   0.9 * static_cast<double>(hit) / static_cast<double>(std::max<size_t>(3, words.size())));
      similar[pattern.record] = std::max(similar[pattern.record], share);
    }
    for (size_t r = 0; r < records_.size(); ++r)
      if (similar[r] >= kSimilarEnough) matches.push_back({&records_[r], similar[r], false});
  }
  std::stable_sort(matches.begin(), matches.end(), [](const Match& a, const Match& b) { return a.score > b.score; });
  if (matches.size() > 5) matches.resize(5);
  return matches;
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
