// Kimi's tokenizer: byte pairs merged by the ranks of tiktoken.model, after its split rules, and special tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/result.h"
#include "model/config.h"
#include "model/utf8.h"

namespace kda::model {

class Tokenizer {
 public:
  // Moves only: the maps hold views of the tokens.
  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;

  // Reads DIRECTORY/tiktoken.model, and the names of special tokens from tokenizer_config.json where there is one.
  // Ids after the ranks up to config.vocab_size are special tokens; [BOS], [EOS] and [PAD] name config's ids by
  // default.
  static io::Result<Tokenizer> load(const std::string& directory, const Config& config);
  // The same from the file's text. `path` is used in messages only.
  static io::Result<Tokenizer> parse(std::string_view tiktoken_model, const std::string& path, const Config& config);

  // Token ids of a text, without [BOS]. Malformed UTF-8 counts as U+FFFD. Names of special tokens in the text are text,
  // unless `special` is set.
  std::vector<int32_t> encode(std::string_view text, bool special = false) const;

  // The bytes of one token, maybe a part of a character; of a special token its name. Empty beyond vocab_size.
  std::string_view bytes(int32_t token) const;
  bool is_special(int32_t token) const { return token >= ranks_ && token < vocab_size(); }
  // The text of tokens as valid UTF-8, special tokens left out.
  std::string decode(std::span<const int32_t> tokens) const;

  int32_t vocab_size() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t bos() const { return bos_; }  // -1 = none
  int32_t eos() const { return eos_; }

 private:
  friend class TokenizerBuilder;
  Tokenizer() = default;
  void encode_piece(std::string_view piece, std::vector<int32_t>* out) const;
  void encode_text(std::string_view text, std::vector<int32_t>* out) const;

  std::vector<std::string> tokens_;  // by id: ranks, then special tokens
  int32_t ranks_ = 0;
  std::unordered_map<std::string_view, int32_t> ids_;      // of ranks; views into tokens_
  std::unordered_map<std::string_view, int32_t> special_;  // names of special tokens
  size_t longest_special_ = 0;
  int32_t bos_ = -1, eos_ = -1;
};

// Text of tokens as they are generated: complete characters only.
class TokenStream {
 public:
  explicit TokenStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  // What the token completes; special tokens have no text.
  std::string push(int32_t token) {
    return tokenizer_.is_special(token) ? std::string() : utf8_.push(tokenizer_.bytes(token));
  }
  std::string finish() { return utf8_.finish(); }

 private:
  const Tokenizer& tokenizer_;
  Utf8Stream utf8_;
};

}  // namespace kda::model
