#include "message_pattern.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace kda::doctor {
namespace {

constexpr size_t kMaxText = 1 << 18;    // of a log the end, where its error is
constexpr size_t kMaxHole = 400;        // letters that a hole may stand for
constexpr size_t kMaxCutHole = 80;      // the same where a cut message begins or ends
constexpr size_t kMaxOccurrences = 64;  // of a message's first part that are tried
constexpr size_t kShortWhole = 11;      // a message with fewer letters must be all there is
constexpr size_t kShortWholeSlack = 8;  // but for these
// A cut message that is all of the text tells enough with so many letters, or fewer that are much of the message.
constexpr size_t kLeastAlone = 8, kPlentyAlone = 16;
constexpr size_t kLeastInHole = 10;  // where only one part is there, and not from its beginning or to its end
// One at the end of other text.
constexpr size_t kLeastBehind = 14, kPlentyBehind = 24;

// Typographic forms that copying from pages and chats leaves in messages.
constexpr std::pair<std::string_view, std::string_view> kTypography[] = {
    {"\xe2\x80\x98", "'"},   {"\xe2\x80\x99", "'"}, {"\xe2\x80\x9c", "'"},  {"\xe2\x80\x9d", "'"},
    {"\xe2\x80\xa6", "..."}, {"\xe2\x80\x93", "-"}, {"\xe2\x80\x94", "--"}, {"\xc2\xa0", " "}};

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

void append(std::string& out, char c) {
  if (is_space(c)) {
    if (!out.empty() && out.back() != ' ') out += ' ';
  } else if (is_digit(c)) {
    if (out.empty() || out.back() != '#') out += '#';
  } else {
    out += c == '"' || c == '`' ? '\'' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
}

// "\x1b[31m": the index behind it, or `at` if there is none.
size_t behind_colour(std::string_view text, size_t at) {
  if (text.substr(at, 2) != "\x1b[") return at;
  const size_t end = text.find_first_not_of("0123456789;", at + 2);
  return end == std::string_view::npos ? text.size() : end + 1;
}

}  // namespace

std::string comparable(std::string_view text) {
  if (text.size() > kMaxText) text.remove_prefix(text.size() - kMaxText);
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (const size_t behind = behind_colour(text, at); behind != at) {
      at = behind;
      continue;
    }
    const auto form = std::find_if(std::begin(kTypography), std::end(kTypography), [&](const auto& entry) {
      return text.substr(at, entry.first.size()) == entry.first;
    });
    if (form != std::end(kTypography)) {
      for (const char c : form->second) append(out, c);
      at += form->first.size();
    } else {
      append(out, text[at++]);
    }
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '#') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

MessagePattern::MessagePattern(std::string_view message) {
  size_t at = 0;
  while (at <= message.size()) {
    const size_t open = message.find('{', at);
    const size_t close = open == std::string_view::npos ? open : message.find('}', open);
    const bool hole = close != std::string_view::npos;
    std::string part = comparable(message.substr(at, hole ? open - at : std::string_view::npos));
    const bool has_letters = part.find_first_not_of(". ") != std::string::npos;
    if (hole && !has_letters && parts_.empty()) begins_with_hole_ = true;
    if (has_letters) {
      letters_ += part.size();
      parts_.push_back(std::move(part));
    }
    ends_with_hole_ = hole || !has_letters;
    if (!hole) break;
    at = close + 1;
  }
}

PatternMatch MessagePattern::find_whole(std::string_view text) const {
  if (parts_.empty()) return {};
  size_t tried = 0;
  for (size_t begin = text.find(parts_[0]); begin != std::string_view::npos && tried < kMaxOccurrences;
       begin = text.find(parts_[0], begin + 1), ++tried) {
    size_t at = begin + parts_[0].size();
    bool all = true;
    for (size_t i = 1; i < parts_.size() && all; ++i) {
      const size_t found = text.find(parts_[i], at);
      if (found == std::string_view::npos) return {};
      all = found - at <= kMaxHole;
      at = found + parts_[i].size();
    }
    if (!all) continue;
    if (letters_ < kShortWhole && letters_ + kShortWholeSlack < text.size()) return {};
    return {letters_, begin, at, true};
  }
  return {};
}

// Parts from `part` on are expected from `at` on; the text may end before they do.
PatternMatch MessagePattern::continue_from(size_t part, size_t at, PatternMatch found, std::string_view text) const {
  for (; part < parts_.size(); ++part) {
    const std::string& wanted = parts_[part];
    const size_t next = text.find(wanted, at);
    if (next != std::string_view::npos && next - at <= kMaxHole) {
      found.letters += wanted.size();
      at = next + wanted.size();
      continue;
    }
    const size_t rest = text.size() - at;
    size_t length = std::min(wanted.size() - 1, rest);
    while (length > 0 && text.substr(text.size() - length) != std::string_view(wanted).substr(0, length)) --length;
    if (rest - length > kMaxCutHole) return {};
    // The next part has begun, and goes on in other words: another message.
    const std::string_view first_word = std::string_view(wanted).substr(0, wanted.find(' '));
    if (length == 0 && first_word.size() > 1 && text.find(first_word, at) != std::string_view::npos) return {};
    found.letters += length;
    found.end = text.size();
    return found;
  }
  found.end = ends_with_hole_ && text.size() - at <= kMaxCutHole ? text.size() : at;
  return found;
}

bool MessagePattern::is_enough(const PatternMatch& found, std::string_view text) const {
  const bool alone = found.begin == 0 && found.end == text.size();
  if (!alone) return found.letters >= kPlentyBehind || (found.letters >= kLeastBehind && 2 * found.letters >= letters_);
  if (3 * found.letters < text.size()) return false;
  return found.letters >= kPlentyAlone || (found.letters >= kLeastAlone && 3 * found.letters >= letters_);
}

PatternMatch MessagePattern::find_cut(std::string_view text) const {
  PatternMatch best;
  const auto offer = [&](const PatternMatch& found) {
    if (found.letters > best.letters && is_enough(found, text)) best = found;
  };
  if (parts_.empty() || text.empty()) return best;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const std::string_view part = parts_[i];
    if (part.find(text) != std::string_view::npos) offer({text.size(), 0, text.size()});
    // The text begins with the end of this part, or in the hole before it.
    size_t length = std::min(part.size(), text.size());
    while (length > 0 && part.substr(part.size() - length) != text.substr(0, length)) --length;
    if (length > 0) offer(continue_from(i + 1, length, {length, 0, 0}, text));
    if (i > 0 || begins_with_hole_) {  // or begins in the hole and ends in the part
      length = std::min(part.size() - 1, text.size());
      while (length > 0 && text.substr(text.size() - length) != part.substr(0, length)) --length;
      if (length >= kLeastInHole && text.size() - length <= kMaxCutHole) offer({length, 0, text.size()});
    }
    const size_t first = text.find(part);
    if ((i > 0 || begins_with_hole_) && first != std::string_view::npos && first <= kMaxCutHole)
      offer(continue_from(i + 1, first + part.size(), {part.size(), 0, 0}, text));
  }
  // The message begins inside the text.
  const std::string_view start = parts_[0];
  size_t tried = 0;
  for (size_t begin = text.find(start); begin != std::string_view::npos && tried < kMaxOccurrences;
       begin = text.find(start, begin + 1), ++tried)
    offer(continue_from(1, begin + start.size(), {start.size(), begin, 0}, text));
  size_t length = std::min(start.size() - 1, text.size());
  while (length > 0 && text.substr(text.size() - length) != start.substr(0, length)) --length;
  if (length > 0) offer({length, text.size() - length, text.size()});
  return best;
}

}  // namespace kda::doctor
