// UTF-8 that arrives in pieces, or that nobody has checked.
#pragma once

#include <string>
#include <string_view>

namespace kda::model {

// Turns bytes into valid UTF-8 as they come: a character that is not complete yet is held back, and every malformed
// sequence becomes U+FFFD, one for each maximal part of a character (as the Unicode standard recommends).
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string finish();  // what was held back, as U+FFFD

 private:
  std::string held_;  // at most 3 bytes: the beginning of one character
};

std::string to_valid_utf8(std::string_view text);

}  // namespace kda::model
