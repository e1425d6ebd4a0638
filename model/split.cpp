#include "model/split.h"

#include <algorithm>
#include <array>

namespace kda::model {
namespace {

enum CharClass : uint8_t {
  kHan = 1,
  kLetter = 2,
  kNumber = 4,
  kSpace = 8,
  kUpper = 16,  // U of the pattern: letters but lower case ones, and marks, not Han
  kLower = 32,  // L of the pattern: letters but upper and title case ones, and marks, not Han
};

struct Range {
  char32_t first;
  uint8_t classes;
};
constexpr Range kRanges[] = {
#include "model/unicode_classes.inc"
};

uint8_t find_classes(char32_t c) {
  const auto* after = std::upper_bound(std::begin(kRanges), std::end(kRanges), c,
                                       [](char32_t x, const Range& r) { return x < r.first; });
  return (after - 1)->classes;
}

uint8_t classes_of(char32_t c) {
  static const std::array<uint8_t, 128> ascii = [] {
    std::array<uint8_t, 128> table{};
    for (size_t i = 0; i < table.size(); ++i) table[i] = find_classes(static_cast<char32_t>(i));
    return table;
  }();
  return c < ascii.size() ? ascii[c] : find_classes(c);
}

// A place in the text, with the character there.
class Cursor {
 public:
  Cursor(std::string_view text, size_t at) : text_(text), at_(at), next_(at) { read(); }

  bool end() const { return at_ == text_.size(); }
  size_t at() const { return at_; }
  char32_t character() const { return character_; }
  bool is(int classes) const { return (classes_ & classes) != 0; }
  bool is_newline() const { return character_ == U'\r' || character_ == U'\n'; }
  void advance() {
    at_ = next_;
    read();
  }
  // Behind all characters of these classes from here on.
  void skip(int classes) {
    while (is(classes)) advance();
  }

 private:
  void read() {
    character_ = 0;
    classes_ = 0;
    if (at_ == text_.size()) return;
    character_ = next_code_point(text_, &next_);
    classes_ = classes_of(character_);
  }
  std::string_view text_;
  size_t at_, next_;
  char32_t character_ = 0;
  uint8_t classes_ = 0;
};

bool same_letter(char32_t c, char letter) {
  constexpr char32_t kLongS = 0x17F;  // folds to s
  return c == static_cast<char32_t>(letter) || c == static_cast<char32_t>(letter - 'a' + 'A') ||
         (letter == 's' && c == kLongS);
}

// Behind a contraction at `at`, or `at` itself.
size_t after_contraction(std::string_view text, size_t at) {
  static constexpr std::string_view kSuffixes[] = {"s", "t", "re", "ve", "m", "ll", "d"};
  if (at == text.size() || text[at] != '\'') return at;
  for (const std::string_view suffix : kSuffixes) {
    Cursor c(text, at + 1);
    size_t matched = 0;
    while (matched < suffix.size() && !c.end() && same_letter(c.character(), suffix[matched])) {
      ++matched;
      c.advance();
    }
    if (matched == suffix.size()) return c.at();
  }
  return at;
}

constexpr size_t kNone = static_cast<size_t>(-1);

// End of U* L+ from `c` on, or kNone. U* is greedy: if no L follows the run of U, the pattern gives back characters
// until L+ can take one, which is the last character of the run that is in both classes.
size_t end_of_lower_word(Cursor c) {
  size_t after_last_both = kNone;
  while (c.is(kUpper)) {
    const bool both = c.is(kLower);
    c.advance();
    if (both) after_last_both = c.at();
  }
  if (!c.is(kLower)) return after_last_both;
  c.skip(kLower);
  return c.at();
}

// End of U+ L* from `c` on, or kNone.
size_t end_of_upper_word(Cursor c) {
  if (!c.is(kUpper)) return kNone;
  c.skip(kUpper);
  c.skip(kLower);
  return c.at();
}

size_t end_of_word(std::string_view text, const Cursor& c) {
  const bool has_lead = !c.is(kLetter | kNumber) && !c.is_newline();
  Cursor behind_lead = c;
  if (has_lead) behind_lead.advance();
  for (const auto rule : {end_of_lower_word, end_of_upper_word}) {
    size_t end = has_lead ? rule(behind_lead) : kNone;
    if (end == kNone) end = rule(c);
    if (end != kNone) return after_contraction(text, end);
  }
  return kNone;
}

size_t end_of_punctuation(Cursor c) {
  if (c.character() == U' ') c.advance();
  if (c.end() || c.is(kSpace | kLetter | kNumber)) return kNone;
  while (!c.end() && !c.is(kSpace | kLetter | kNumber)) c.advance();
  while (c.is_newline()) c.advance();
  return c.at();
}

size_t end_of_space(Cursor c) {
  const size_t start = c.at();
  size_t after_newline = kNone, last = start;
  while (c.is(kSpace)) {
    const bool newline = c.is_newline();
    last = c.at();
    c.advance();
    if (newline) after_newline = c.at();
  }
  if (after_newline != kNone) return after_newline;
  // Before something else the last space stays for the next piece, unless it is the only one.
  return c.end() || last == start ? c.at() : last;
}

}  // namespace

char32_t next_code_point(std::string_view text, size_t* at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[*at + i]); };
  const unsigned char lead = byte(0);
  const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t c = length == 1 ? lead : lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) c = c << 6 | (byte(i) & 0x3Fu);
  *at += length;
  return c;
}

size_t piece_length(std::string_view text, size_t at) {
  Cursor c(text, at);
  if (c.is(kHan)) {
    c.skip(kHan);
    return c.at() - at;
  }
  if (const size_t end = end_of_word(text, c); end != kNone) return end - at;
  if (c.is(kNumber)) {
    for (int digits = 0; digits < 3 && c.is(kNumber); ++digits) c.advance();
    return c.at() - at;
  }
  if (const size_t end = end_of_punctuation(c); end != kNone) return end - at;
  return end_of_space(c) - at;
}

}  // namespace kda::model
