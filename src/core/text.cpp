#include "core/text.h"

#include <cstdio>
#include <cstring>

namespace kda {

void append_text(char* buffer, size_t capacity, const char* format, va_list arguments) {
  const size_t used = std::strlen(buffer);
  const int length = std::vsnprintf(buffer + used, capacity - used, format, arguments);
  if (length < 0 || used + static_cast<size_t>(length) < capacity) return;
  // The text was cut: drop the last character if the cut went through it.
  size_t end = capacity - 1;
  size_t start = end;
  while (start > 0 && (static_cast<unsigned char>(buffer[start - 1]) & 0xC0) == 0x80) --start;
  if (start == 0) return;
  const auto lead = static_cast<unsigned char>(buffer[start - 1]);
  const size_t whole = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
  if (lead >= 0xC0 && end - (start - 1) < whole) buffer[start - 1] = '\0';
}

}  // namespace kda
