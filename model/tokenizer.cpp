#include "model/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <queue>

#include "io/file.h"
#include "model/split.h"

namespace kda::model {
namespace {

std::optional<std::string> decode_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 4) {
    uint32_t group = 0;
    int padding = 0;
    for (size_t j = 0; j < 4; ++j) {
      const char c = text[i + j];
      uint32_t value = 0;
      if (c >= 'A' && c <= 'Z') {
        value = static_cast<uint32_t>(c - 'A');
      } else if (c >= 'a' && c <= 'z') {
        value = static_cast<uint32_t>(c - 'a' + 26);
      } else if (c >= '0' && c <= '9') {
        value = static_cast<uint32_t>(c - '0' + 52);
      } else if (c == '+') {
        value = 62;
      } else if (c == '/') {
        value = 63;
      } else if (c == '=' && i + 4 == text.size() && j >= 2) {
        ++padding;
      } else {
        return std::nullopt;
      }
      if (c != '=' && padding > 0) return std::nullopt;
      group = group << 6 | value;
    }
    for (int j = 0; j < 3 - padding; ++j) bytes += static_cast<char>(group >> (16 - 8 * j) & 0xFFu);
  }
  return bytes;
}

// A part of a piece while its bytes are merged: [begin, end) and its neighbours.
struct Part {
  int32_t begin, end, previous, next;
};
struct Merge {
  int32_t rank, part, begin, end;  // of `part` and its next one; stale if the part's bounds have changed since
};
struct Later {
  // The lowest rank first, of equal ones the leftmost.
  bool operator()(const Merge& a, const Merge& b) const {
    return a.rank != b.rank ? a.rank > b.rank : a.begin > b.begin;
  }
};

}  // namespace

// Fills a Tokenizer; the first complaint is kept.
class TokenizerBuilder {
 public:
  explicit TokenizerBuilder(std::string path) : path_(std::move(path)) {}

  io::Result<Tokenizer> build(std::string_view text, const std::map<int32_t, std::string>& names,
                              const Config& config) {
    if (auto ok = read_ranks(text, config.vocab_size); !ok) return io::Error{path_ + ": " + ok.error()};
    add_special_tokens(names, config);
    t_.bos_ = config.bos_token;
    t_.eos_ = config.eos_token;
    return std::move(t_);
  }

 private:
  io::Outcome read_ranks(std::string_view text, int64_t vocab_size) {
    // Reserved now: the maps below hold views of the strings.
    t_.tokens_.reserve(static_cast<size_t>(vocab_size));
    for (int64_t line = 1; !text.empty(); ++line) {
      const size_t end = std::min(text.find('\n'), text.size());
      std::string_view content = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (!content.empty() && content.back() == '\r') content.remove_suffix(1);
      if (content.empty()) continue;
      if (auto ok = add_rank(content, vocab_size); !ok) {
        return io::Error{fmt::format("line {}: {}", line, ok.error())};
      }
    }
    t_.ranks_ = static_cast<int32_t>(t_.tokens_.size());
    for (int b = 0; b < 256; ++b) {
      const char byte = static_cast<char>(b);
      if (!t_.ids_.contains(std::string_view(&byte, 1))) {
        return io::Error{fmt::format("no token for the single byte 0x{:02X}", b)};
      }
    }
    return io::Done{};
  }

  io::Outcome add_rank(std::string_view line, int64_t vocab_size) {
    const size_t space = line.find(' ');
    const auto token = space == std::string_view::npos ? std::nullopt : decode_base64(line.substr(0, space));
    int64_t rank = -1;
    if (token) {
      const char* end = line.data() + line.size();
      const auto [stop, error] = std::from_chars(line.data() + space + 1, end, rank);
      if (error != std::errc() || stop != end) rank = -1;
    }
    if (rank < 0) return io::Error{"expected a base64 token, a space and its rank"};
    if (rank != static_cast<int64_t>(t_.tokens_.size())) {
      return io::Error{fmt::format("expected rank {}, found {}", t_.tokens_.size(), rank)};
    }
    if (rank >= vocab_size) return io::Error{fmt::format("more tokens than config.json's vocab_size {}", vocab_size)};
    t_.tokens_.push_back(*token);
    if (!t_.ids_.emplace(t_.tokens_.back(), static_cast<int32_t>(rank)).second) {
      return io::Error{"a token that an earlier line has"};
    }
    return io::Done{};
  }

  void add_special_tokens(const std::map<int32_t, std::string>& names, const Config& config) {
    for (auto id = t_.ranks_; id < config.vocab_size; ++id) {
      std::string name = fmt::format("<|reserved_token_{}|>", id);
      if (id == config.bos_token) name = "[BOS]";
      if (id == config.eos_token) name = "[EOS]";
      if (id == config.pad_token) name = "[PAD]";
      if (const auto given = names.find(id); given != names.end() && !given->second.empty()) name = given->second;
      t_.tokens_.push_back(std::move(name));
      t_.special_.emplace(t_.tokens_.back(), id);
      t_.longest_special_ = std::max(t_.longest_special_, t_.tokens_.back().size());
    }
  }

  std::string path_;
  Tokenizer t_;
};

io::Result<Tokenizer> Tokenizer::parse(std::string_view tiktoken_model, const std::string& path, const Config& config) {
  return TokenizerBuilder(path).build(tiktoken_model, {}, config);
}

io::Result<Tokenizer> Tokenizer::load(const std::string& directory, const Config& config) {
  const std::string path = directory + "/tiktoken.model";
  auto text = io::read_file(path);
  if (!text) return io::Error{text.error()};
  std::map<int32_t, std::string> names;
  // A hint about names; a file that is absent or of another form changes nothing.
  if (auto hints = io::read_file(directory + "/tokenizer_config.json")) {
    const auto json = nlohmann::json::parse(*hints, nullptr, /*allow_exceptions=*/false);
    const auto added = json.is_object() ? json.find("added_tokens_decoder") : json.end();
    if (json.is_object() && added != json.end() && added->is_object()) {
      for (const auto& [key, value] : added->items()) {
        int32_t id = -1;
        std::from_chars(key.data(), key.data() + key.size(), id);
        if (id >= 0 && value.is_object() && value.contains("content") && value["content"].is_string()) {
          names[id] = value["content"].get<std::string>();
        }
      }
    }
  }
  return TokenizerBuilder(path).build(*text, names, config);
}

void Tokenizer::encode_piece(std::string_view piece, std::vector<int32_t>* out) const {
  if (const auto whole = ids_.find(piece); whole != ids_.end()) {
    out->push_back(whole->second);
    return;
  }
  const auto size = static_cast<int32_t>(piece.size());
  std::vector<Part> parts;
  parts.reserve(piece.size());
  for (int32_t i = 0; i < size; ++i) parts.push_back({i, i + 1, i - 1, i + 1 < size ? i + 1 : -1});
  std::priority_queue<Merge, std::vector<Merge>, Later> merges;
  const auto offer = [&](int32_t part) {
    if (part < 0 || parts[static_cast<size_t>(part)].next < 0) return;
    const int32_t begin = parts[static_cast<size_t>(part)].begin;
    const int32_t end = parts[static_cast<size_t>(parts[static_cast<size_t>(part)].next)].end;
    const auto found = ids_.find(piece.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    if (found != ids_.end()) merges.push({found->second, part, begin, end});
  };
  for (int32_t i = 0; i + 1 < size; ++i) offer(i);
  while (!merges.empty()) {
    const Merge merge = merges.top();
    merges.pop();
    Part& left = parts[static_cast<size_t>(merge.part)];
    if (left.begin != merge.begin || left.next < 0 || parts[static_cast<size_t>(left.next)].end != merge.end) continue;
    Part& right = parts[static_cast<size_t>(left.next)];
    left.end = right.end;
    left.next = right.next;
    right.begin = right.end = -1;  // any merge that still names it is stale
    right.next = -1;
    if (left.next >= 0) parts[static_cast<size_t>(left.next)].previous = merge.part;
    offer(merge.part);
    offer(left.previous);
  }
  for (int32_t part = 0; part >= 0; part = parts[static_cast<size_t>(part)].next) {
    const Part& p = parts[static_cast<size_t>(part)];
    out->push_back(ids_.at(piece.substr(static_cast<size_t>(p.begin), static_cast<size_t>(p.end - p.begin))));
  }
}

void Tokenizer::encode_text(std::string_view text, std::vector<int32_t>* out) const {
  for (size_t at = 0; at < text.size();) {
    const size_t length = piece_length(text, at);
    encode_piece(text.substr(at, length), out);
    at += length;
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view raw, bool special) const {
  const std::string valid = to_valid_utf8(raw);
  const std::string_view text = valid;
  std::vector<int32_t> out;
  size_t start = 0;
  for (size_t at = 0; special && at < text.size();) {
    size_t length = std::min(longest_special_, text.size() - at);  // then of the longest name that starts here
    while (length > 0 && !special_.contains(text.substr(at, length))) --length;
    if (length == 0) {
      ++at;
      continue;
    }
    encode_text(text.substr(start, at - start), &out);
    out.push_back(special_.at(text.substr(at, length)));
    at += length;
    start = at;
  }
  encode_text(text.substr(start), &out);
  return out;
}

std::string_view Tokenizer::bytes(int32_t token) const {
  if (token < 0 || token >= vocab_size()) return {};
  return tokens_[static_cast<size_t>(token)];
}

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
  TokenStream stream(*this);
  std::string text;
  for (int32_t token : tokens) text += stream.push(token);
  return text + stream.finish();
}

}  // namespace kda::model
