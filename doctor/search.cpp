// How kda explain finds the record of a text.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "command_line.h"
#include "explain.h"

namespace kda::doctor {
namespace {

constexpr size_t kMaxMatches = 8;     // a piece that more messages share tells nothing
constexpr double kOtherEngine = 0.5;  // what a match counts whose engine is not the one that the text implies
constexpr double kStray = 0.5;        // matches below this share of the best, inside its text, are parts of it
// Similar records: so many words in common that few messages have, and so much of either text.
constexpr size_t kLeastTellingWords = 3;
constexpr double kSimilarEnough = 0.45;
constexpr size_t kTellingShare = 12;  // a word tells something if at most one message in so many has it

// Words of every program's errors: that two texts share them says nothing.
bool is_plain(const std::string& word) {
  static const std::set<std::string> plain = {
      "a",          "an",          "and",     "any",     "are",     "argument", "as",      "at",        "attribute",
      "available",  "be",          "between", "by",      "call",    "cannot",   "choice",  "choose",    "cuda",
      "current",    "currently",   "device",  "does",    "error",   "expected", "failed",  "for",       "found",
      "from",       "got",         "gpu",     "has",     "have",    "if",       "import",  "in",        "index",
      "input",      "instances",   "int",     "invalid", "is",      "it",       "kernel",  "keyword",   "list",
      "memory",     "missing",     "module",  "must",    "name",    "named",    "no",      "none",      "nonetype",
      "not",        "number",      "object",  "of",      "on",      "only",     "or",      "out",       "range",
      "required",   "requires",    "same",    "set",     "size",    "str",      "support", "supported", "tensor",
      "tensors",    "than",        "that",    "the",     "this",    "to",       "torch",   "tuple",     "type",
      "unexpected", "unsupported", "use",     "value",   "version", "while",    "with",    "without",   "#"};
  return word.size() < 3 || plain.count(word) > 0;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Options named in a text: words that begin with --.
std::vector<std::string> options_in(const std::string& text) {
  std::vector<std::string> options;
  for (size_t at = text.find("--"); at != std::string::npos; at = text.find("--", at + 2)) {
    if (at > 0 && (std::isalnum(static_cast<unsigned char>(text[at - 1])) || text[at - 1] == '-')) continue;
    const size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz-_#", at);
    const std::string option = text.substr(at, end == std::string::npos ? end : end - at);
    if (option.size() > 2) options.push_back(option);
  }
  return options;
}

}  // namespace

namespace {

// One of the options is in the text, or the text begins within its name.
bool names_one_of(const std::vector<std::string>& options, const std::vector<std::string>& used,
                  const std::vector<std::string_view>& pieces) {
  constexpr size_t kLeastOfAName = 3;
  if (!used.empty()) {
    return std::any_of(used.begin(), used.end(), [&](const std::string& option) {
      return std::binary_search(options.begin(), options.end(), option);
    });
  }
  return std::any_of(pieces.begin(), pieces.end(), [&](std::string_view piece) {
    const std::string_view end_of_name = piece.substr(0, piece.find(':'));
    return end_of_name.size() >= kLeastOfAName &&
           std::any_of(options.begin(), options.end(),
                       [&](const std::string& option) { return ends_with(option, end_of_name); });
  });
}

}  // namespace

// What a search found of one record.
struct Catalogue::Candidate {
  size_t record;
  PatternMatch match;
  double score;
};

std::string Catalogue::implied_engine(const std::string& text) const {
  const std::vector<std::string> used = options_in(text);
  std::string implied;
  for (const auto& [engine, flags] : options_) {
    bool own = text.find(engine) != std::string::npos;
    for (const std::string& flag : used) {
      if (!std::binary_search(flags.begin(), flags.end(), flag)) continue;
      own = own || std::all_of(options_.begin(), options_.end(), [&](const auto& other) {
              return other.first == engine || !std::binary_search(other.second.begin(), other.second.end(), flag);
            });
    }
    if (!own) continue;
    if (!implied.empty()) return {};
    implied = engine;
  }
  return implied;
}

std::vector<Catalogue::Candidate> Catalogue::candidates(const std::string& text) const {
  // What people leave around a piece: dots for what is missing, quotes, the error's class.
  constexpr std::string_view kAround = ". '";
  std::vector<std::string_view> pieces;
  const auto add = [&](std::string_view piece) {
    pieces.push_back(piece);
    const size_t first = piece.find_first_not_of(kAround);
    if (first == std::string_view::npos) return;
    piece.remove_prefix(first);
    pieces.push_back(piece);
    pieces.push_back(piece.substr(0, piece.find_last_not_of(kAround) + 1));
  };
  add(text);
  for (const std::string_view ending : {"error: ", "exception: "})
    if (const size_t at = text.rfind(ending); at != std::string::npos)
      add(std::string_view(text).substr(at + ending.size()));
  const bool is_bare_class = !text.empty() && text.find_first_of(" -_") == std::string::npos &&
                             (ends_with(text, "error") || ends_with(text, "exception"));
  const std::string engine = implied_engine(text);
  const std::vector<std::string> used = options_in(text);
  std::vector<Candidate> found;
  for (const Pattern& pattern : patterns_) {
    const std::string owner = records_[pattern.record].value("engine", "");
    const std::vector<std::string>& flags = options_of(owner);
    if (pattern.names_an_option && !names_one_of(flags, used, pieces)) continue;
    PatternMatch match = pattern.message.find_whole(text);
    for (const std::string_view piece : pieces) {
      if (match.whole || is_bare_class) break;
      PatternMatch cut = pattern.message.find_cut(piece);
      const auto offset = static_cast<size_t>(piece.data() - text.data());
      cut.begin += offset, cut.end += offset;
      if (cut.letters > match.letters) match = cut;
    }
    if (!match) continue;
    const bool is_other = !engine.empty() && owner != engine && options_.count(owner) > 0;
    const double score = static_cast<double>(match.letters) * (is_other ? kOtherEngine : 1);
    const auto same = std::find_if(found.begin(), found.end(),
                                   [&](const Candidate& candidate) { return candidate.record == pattern.record; });
    if (same == found.end()) {
      found.push_back({pattern.record, match, score});
    } else if (score > same->score) {
      *same = {pattern.record, match, score};
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
  return found;
}

std::vector<Match> Catalogue::matching(const std::string& text) const {
  std::vector<Candidate> found = candidates(text);
  if (found.empty()) return {};
  const Candidate best = found.front();
  std::erase_if(found, [&](const Candidate& candidate) {
    const bool inside = candidate.match.begin >= best.match.begin && candidate.match.end <= best.match.end;
    return candidate.score < kStray * best.score && (inside || !candidate.match.whole);
  });
  if (!best.match.whole && found.size() > kMaxMatches) return {};
  std::vector<Match> matches;
  for (const Candidate& candidate : found) matches.push_back({&records_[candidate.record], candidate.score, true});
  return matches;
}

// Codes inside a longer text, e.g. a log line of libkda.
std::vector<Match> Catalogue::named_codes(const std::string& text) const {
  std::vector<Match> matches;
  for (const Json& record : records_) {
    const std::string id = simplify(record.at("id").get<std::string>());
    const auto is_word = [&](size_t i) {
      return i < text.size() && (std::isalnum(static_cast<unsigned char>(text[i])) || text[i] == '-');
    };
    for (size_t found = text.find(id); found != std::string::npos; found = text.find(id, found + 1)) {
      if (is_word(found + id.size()) || (found > 0 && is_word(found - 1))) continue;
      matches.push_back({&record, 1e6, true});
      break;
    }
  }
  return matches;
}

std::vector<Match> Catalogue::mistyped_code(const std::string& text) const {
  std::vector<Match> matches;
  for (const Json& record : records_) {
    const std::string id = simplify(record.at("id").get<std::string>());
    const size_t distance = edit_distance(text, id);
    if (distance <= std::max<size_t>(1, id.size() / 4))
      matches.push_back({&record, 1.0 / static_cast<double>(1 + distance), false});
  }
  return matches;
}

// A message that was reworded: words in common, the rarer the better, and plain ones not at all.
std::vector<Match> Catalogue::similar(const std::string& text) const {
  const auto all = static_cast<double>(records_.size());
  const auto weight = [&](const std::string& word) {
    if (is_plain(word)) return 0.0;
    const auto found = word_records_.find(word);
    return std::log(all / static_cast<double>(found == word_records_.end() ? 1 : found->second));
  };
  const std::vector<std::string> list = words_of(text);
  const std::set<std::string> words(list.begin(), list.end());
  double asked = 0;
  for (const std::string& word : words) asked += weight(word);
  std::vector<double> best(records_.size(), 0);
  for (const Pattern& pattern : patterns_) {
    std::set<std::string> own;
    for (const std::string& part : pattern.message.parts())
      for (std::string& word : words_of(part)) own.insert(std::move(word));
    double total = 0, hit = 0;
    size_t telling = 0;
    for (const std::string& word : own) {
      total += weight(word);
      if (words.count(word) == 0) continue;
      hit += weight(word);
      telling += !is_plain(word) && word_records_.at(word) * kTellingShare <= records_.size() ? 1 : 0;
    }
    if (telling < kLeastTellingWords) continue;
    best[pattern.record] = std::max({best[pattern.record], hit / total, hit / asked});
  }
  std::vector<Match> matches;
  for (size_t r = 0; r < records_.size(); ++r)
    if (best[r] >= kSimilarEnough) matches.push_back({&records_[r], best[r], false});
  return matches;
}

std::vector<Match> Catalogue::search(std::string_view query) const {
  if (const Json* record = find(query)) return {{record, 1e9, true}};
  const std::string simple = simplify(query), text = comparable(query);
  if (text.empty()) return {};
  std::vector<Match> matches = named_codes(simple);
  for (const Match& match : matching(text))
    if (std::none_of(matches.begin(), matches.end(), [&](const Match& one) { return one.record == match.record; }))
      matches.push_back(match);
  const bool is_word = simple.find(' ') == std::string::npos;
  if (matches.empty()) matches = is_word ? mistyped_code(simple) : similar(text);
  std::stable_sort(matches.begin(), matches.end(), [](const Match& a, const Match& b) { return a.score > b.score; });
  if (matches.size() > kMaxMatches) matches.resize(kMaxMatches);
  return matches;
}

}  // namespace kda::doctor
