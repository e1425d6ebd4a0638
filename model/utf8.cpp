#include "model/utf8.h"

#include <cstddef>

namespace kda::model {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

enum class Form { complete, incomplete, malformed };
struct Sequence {
  Form form;
  size_t length;  // of the character, or of the maximal part of one
};

// Looks at the start of non-empty `text`.
Sequence first_sequence(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Form::complete, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Form::malformed, 1};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Form::incomplete, i};
    unsigned char least = 0x80, most = 0xBF;
    if (i == 1) {  // excludes overlong forms, surrogates and what is beyond U+10FFFF
      if (lead == 0xE0) least = 0xA0;
      if (lead == 0xED) most = 0x9F;
      if (lead == 0xF0) least = 0x90;
      if (lead == 0xF4) most = 0x8F;
    }
    if (byte(i) < least || byte(i) > most) return {Form::malformed, i};
  }
  return {Form::complete, length};
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  std::string all = std::move(held_);
  all += bytes;
  held_.clear();
  std::string valid;
  std::string_view rest = all;
  while (!rest.empty()) {
    const Sequence s = first_sequence(rest);
    if (s.form == Form::incomplete) {
      held_ = rest;
      break;
    }
    valid += s.form == Form::complete ? rest.substr(0, s.length) : kReplacement;
    rest.remove_prefix(s.length);
  }
  return valid;
}

std::string Utf8Stream::finish() {
  const bool held = !held_.empty();
  held_.clear();
  return std::string(held ? kReplacement : std::string_view());
}

std::string to_valid_utf8(std::string_view text) {
  Utf8Stream stream;
  std::string valid = stream.push(text);
  return valid + stream.finish();
}

}  // namespace kda::model
