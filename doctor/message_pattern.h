// A message with holes, looked for in pasted text: whole, with other numbers, or cut at either end.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kda::doctor {

// What messages are compared in: lower case, blanks as one, quotes of every kind as ', colours dropped, and every
// number as #, so that "needs 12 scratch steps" is "needs 8 scratch steps".
std::string comparable(std::string_view text);

// Words of a text: letters, digits, _ and the # of comparable().
std::vector<std::string> words_of(std::string_view text);

struct PatternMatch {
  size_t letters = 0;         // of the pattern's fixed parts that are in the text; 0 = not found
  size_t begin = 0, end = 0;  // where it is
  bool whole = false;         // every part
  explicit operator bool() const { return letters > 0; }
};

class MessagePattern {
 public:
  // {name} stands for any text.
  explicit MessagePattern(std::string_view message);

  // `text` as from comparable(). Every fixed part, in order, not too far apart.
  PatternMatch find_whole(std::string_view text) const;
  // A piece: the text ends inside the message, begins inside it, or both. Pieces too small to tell are not found.
  PatternMatch find_cut(std::string_view text) const;

  const std::vector<std::string>& parts() const { return parts_; }
  size_t letters() const { return letters_; }

 private:
  PatternMatch continue_from(size_t part, size_t at, PatternMatch found, std::string_view text) const;
  bool is_enough(const PatternMatch& found, std::string_view text) const;

  std::vector<std::string> parts_;  // in the form of comparable(), in order
  size_t letters_ = 0;
  bool begins_with_hole_ = false, ends_with_hole_ = false;
};

}  // namespace kda::doctor
