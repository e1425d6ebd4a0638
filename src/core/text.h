// Text in a fixed buffer: formatting without allocation. What does not fit is cut at a whole UTF-8 character.
#pragma once

#include <cstdarg>
#include <cstddef>

namespace kda {

// Appends to the NUL-terminated text in buffer[0, capacity).
[[gnu::format(printf, 3, 0)]] void append_text(char* buffer, size_t capacity, const char* format, va_list arguments);

template <size_t kCapacity = 320>
class FixedText {
 public:
  FixedText() { text_[0] = '\0'; }
  [[gnu::format(printf, 2, 3)]] explicit FixedText(const char* format, ...) : FixedText() {
    va_list arguments;
    va_start(arguments, format);
    append(format, arguments);
    va_end(arguments);
  }
  [[gnu::format(printf, 2, 3)]] FixedText& add(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    append(format, arguments);
    va_end(arguments);
    return *this;
  }
  [[gnu::format(printf, 2, 0)]] void append(const char* format, va_list arguments) {
    append_text(text_, kCapacity, format, arguments);
  }
  const char* c_str() const { return text_; }
  bool empty() const { return text_[0] == '\0'; }
  operator const char*() const { return text_; }  // NOLINT(google-explicit-constructor): a text is used as one

 private:
  char text_[kCapacity];
};

}  // namespace kda
