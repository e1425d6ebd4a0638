// Kimi's split rules: where a text is cut before byte pairs are merged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kda::model {

// Decodes the code point at `at` and moves `at` behind it. The text must be valid UTF-8 (see model/utf8.h).
char32_t next_code_point(std::string_view text, size_t* at);

// Length in bytes of the piece that starts at `at` in valid UTF-8; at least 1 for at < text.size(). The pattern, in
// order of preference:
//   [\p{Han}]+
//   [^\r\n\p{L}\p{N}]? U* L+ contraction?       U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]
//   [^\r\n\p{L}\p{N}]? U+ L* contraction?       L = [\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]
//   \p{N}{1,3}
//    ?[^\s\p{L}\p{N}]+[\r\n]*
//   \s*[\r\n]+   \s+(?!\S)   \s+                contraction = (?i:'s|'t|'re|'ve|'m|'ll|'d)
size_t piece_length(std::string_view text, size_t at);

}  // namespace kda::model
