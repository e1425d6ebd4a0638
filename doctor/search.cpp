// How kda explain finds the record of a text.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <set>

#include "command_line.h"
#include "explain.h"

namespace kda::doctor {
namespace {

constexpr size_t kMaxMatches = 8;     // a piece that more messages share tells nothing
constexpr double kOtherEngine = 0.5;  // what a match counts whose engine is not the one that the text implies
constexpr double kStray = 0.5;        // matches below this share of the best, inside its text, are parts of it
constexpr double kStrayCut = 0.9;     // the same for cut ones
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

// Where options are named in a text: words that begin with --.
std::vector<size_t> option_places(const std::string& text) {
  std::vector<size_t> places;
  for (size_t at = text.find("--"); at != std::string::npos; at = text.find("--", at + 2)) {
    if (at > 0 && (std::isalnum(static_cast<unsigned char>(text[at - 1])) || text[at - 1] == '-')) continue;
    if (at + 2 < text.size() && text[at + 2] != ' ') places.push_back(at);
  }
  return places;
}

std::string option_at(const std::string& text, size_t at) {
  const size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz-_#", at);
  return text.substr(at, end == std::string::npos ? end : end - at);
}

}  // namespace

namespace {

// A text, or what is left of it without what people leave around a piece: dots for what is missing, quotes, the error's
// class.
struct Piece {
  std::string text;
  size_t offset;  // in the whole text
};

std::vector<Piece> pieces_of(const std::string& text) {
  constexpr std::string_view kAround = ". '";
  std::vector<Piece> pieces;
  const auto add = [&](size_t at) {
    pieces.push_back({text.substr(at), at});
    const size_t first = text.find_first_not_of(kAround, at);
    if (first == std::string::npos) return;
    pieces.push_back({text.substr(first), first});
    pieces.push_back({text.substr(first, text.find_last_not_of(kAround) + 1 - first), first});
  };
  add(0);
  for (const std::string_view ending : {"error: ", "exception: "})
    if (const size_t at = text.rfind(ending); at != std::string::npos) add(at + ending.size());
  return pieces;
}

// The text with kAnyOption for each of the options, also where the text begins or ends within a name, and for
// abbreviations that are long enough to be no other program's.
std::string replace_options(const std::string& text, const std::vector<std::string>& options) {
  constexpr size_t kLeastOfAName = 3, kLeastAbbreviation = 8;
  std::string out;
  size_t done = 0;
  const std::string_view end_of_name = std::string_view(text).substr(0, text.find_first_of(": "));
  if (end_of_name.size() >= kLeastOfAName && end_of_name.substr(0, 2) != "--" &&
      std::any_of(options.begin(), options.end(),
                  [&](const std::string& one) { return ends_with(one, end_of_name); })) {
    out = kAnyOption.substr(2);
    done = end_of_name.size();
  }
  for (const size_t at : option_places(text)) {
    const std::string name = option_at(text, at);
    const auto next = std::lower_bound(options.begin(), options.end(), name);
    if (next == options.end() || next->compare(0, name.size(), name) != 0) continue;
    const bool is_end = at + name.size() == text.size();
    if (*next != name && !is_end && name.size() < kLeastAbbreviation) continue;
    out.append(text, done, at - done).append(kAnyOption);
    done = at + name.size();
  }
  return out.append(text, done);
}

}  // namespace

// What a search found of one record.
struct Catalogue::Candidate {
  size_t record;
  PatternMatch match;
  double score;
};

std::string Catalogue::implied_engine(const std::string& text) const {
  std::vector<std::string> used;
  for (const size_t at : option_places(text)) used.push_back(option_at(text, at));
  std::string implied;
  for (const auto& engine : options_) {
    const auto takes = [](const auto& of, const std::string& flag) {
      return std::binary_search(of.second.begin(), of.second.end(), flag);
    };
    bool own = text.find(engine.first) != std::string::npos;
    for (const std::string& flag : used) {
      if (!takes(engine, flag)) continue;
      own = own || std::all_of(options_.begin(), options_.end(),
                               [&](const auto& other) { return other.first == engine.first || !takes(other, flag); });
    }
    if (!own) continue;
    if (!implied.empty()) return {};
    implied = engine.first;
  }
  return implied;
}

std::vector<Catalogue::Candidate> Catalogue::candidates(const std::string& text) const {
  const std::vector<Piece> plain = pieces_of(text);
  std::map<std::string, std::vector<Piece>> with_options;  // by engine
  for (const auto& [engine, options] : options_) {
    for (const Piece& piece : plain)
      with_options[engine].push_back({replace_options(piece.text, options), piece.offset});
  }
  const bool is_bare_class = !text.empty() && text.find_first_of(" -_") == std::string::npos &&
                             (ends_with(text, "error") || ends_with(text, "exception"));
  const std::string engine = implied_engine(text);
  std::vector<Candidate> found;
  for (const Pattern& pattern : patterns_) {
    const std::string owner = records_[pattern.record].value("engine", "");
    const auto own = pattern.names_an_option ? with_options.find(owner) : with_options.end();
    const std::vector<Piece>& pieces = own != with_options.end() ? own->second : plain;
    PatternMatch match = pattern.message.find_whole(pieces.front().text);
    for (const Piece& piece : pieces) {
      if (match.whole || is_bare_class) break;
      PatternMatch cut = pattern.message.find_cut(piece.text);
      cut.begin += piece.offset, cut.end += piece.offset;
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
    const double least = (candidate.match.whole ? kStray : kStrayCut) * best.score;
    return candidate.score < least && (inside || !candidate.match.whole);
  });
  if (!best.match.whole && found.size() > kMaxMatches) return {};
  std::vector<Match> matches;
  matches.reserve(found.size());
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
