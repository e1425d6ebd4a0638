#include "command_line.h"

#include <algorithm>
#include <cctype>

namespace kda::doctor {

namespace {

constexpr size_t kMaxCommandBytes = 1 << 20;

bool is_assignment(std::string_view word) {
  const size_t equal = word.find('=');
  if (equal == 0 || equal == std::string_view::npos) return false;
  for (size_t i = 0; i < equal; ++i) {
    const auto c = static_cast<unsigned char>(word[i]);
    if (!(std::isalpha(c) || c == '_' || (i > 0 && std::isdigit(c)))) return false;
  }
  return true;
}

bool matches(std::string_view pattern, std::string_view word) {
  const size_t slash = word.rfind('/');
  if (slash != std::string_view::npos) word.remove_prefix(slash + 1);
  if (!pattern.empty() && pattern.back() == '*') {
    pattern.remove_suffix(1);
    if (word.substr(0, pattern.size()) != pattern) return false;
    word.remove_prefix(pattern.size());
    return std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c) || c == '.'; });
  }
  return pattern == word;
}

bool is_number(std::string_view word) {
  if (!word.empty() && word.front() == '-') word.remove_prefix(1);
  return !word.empty() &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c) || c == '.'; });
}

bool looks_like_option(std::string_view word) { return word.size() > 1 && word.front() == '-' && !is_number(word); }

}  // namespace

std::vector<std::string> split_words(std::string_view text) {
  if (text.size() > kMaxCommandBytes) throw UsageError("the command is longer than 1 MiB");
  std::vector<std::string> words;
  std::string word;
  bool open = false;  // a word has begun, possibly an empty quoted one
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\') {
      if (i + 1 >= text.size()) break;
      ++i;
      if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') ++i;
      if (text[i] == '\n') continue;
      word += text[i];
      open = true;
    } else if (c == '\'' || c == '"') {
      open = true;
      size_t j = i + 1;
      for (; j < text.size() && text[j] != c; ++j) {
        if (c == '"' && text[j] == '\\' && j + 1 < text.size()) {
          const char next = text[j + 1];
          if (next == '"' || next == '\\' || next == '$' || next == '`')
            ++j;
          else if (next == '\n') {
            ++j;
            continue;
          }
        }
        word += text[j];
      }
      if (j >= text.size()) throw UsageError(std::string("a quote is not closed: ") + c);
      i = j;
    } else if (std::isspace(static_cast<unsigned char>(c))) {
      if (open) words.push_back(std::move(word));
      word.clear();
      open = false;
    } else if (c == '#' && !open) {
      while (i < text.size() && text[i] != '\n') ++i;
    } else {
      word += c;
      open = true;
    }
  }
  if (open) words.push_back(std::move(word));
  return words;
}

std::string join_words(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) {
    if (!out.empty()) out += ' ';
    const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
      return std::isalnum(c) || std::string_view("-_=./:,@%+").find(static_cast<char>(c)) != std::string_view::npos;
    });
    if (plain) {
      out += word;
      continue;
    }
    out += '\'';
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    out += '\'';
  }
  return out;
}

int find_launcher(const std::vector<std::string>& words, const std::vector<std::vector<std::string>>& launchers,
                  ParsedCommand& command) {
  for (size_t at = 0; at < words.size(); ++at) {
    for (size_t l = 0; l < launchers.size(); ++l) {
      const auto& launcher = launchers[l];
      if (at + launcher.size() > words.size()) continue;
      bool same = true;
      for (size_t i = 0; i < launcher.size() && same; ++i) same = matches(launcher[i], words[at + i]);
      if (!same) continue;
      command.words = words;
      command.options_begin = at + launcher.size();
      command.environment.clear();
      for (size_t i = 0; i < at; ++i) {
        if (!is_assignment(words[i])) continue;
        const size_t equal = words[i].find('=');
        command.environment.emplace_back(words[i].substr(0, equal), words[i].substr(equal + 1));
      }
      return static_cast<int>(l);
    }
  }
  return -1;
}

OptionIndex index_options(const std::vector<OptionSpec>& specs,
                          const std::vector<std::vector<std::string>>& other_flags) {
  OptionIndex index;
  for (size_t s = 0; s < specs.size(); ++s)
    for (const std::string& name : specs[s].flags)
      index[name] = {static_cast<int>(s),
                     specs[s].kind != OptionSpec::Kind::kFlag && specs[s].kind != OptionSpec::Kind::kNegated};
  for (const auto& other : other_flags)
    for (size_t i = 1; i < other.size(); ++i) index.try_emplace(other[i], -2, other[0] != "0");
  return index;
}

void parse_options(const std::vector<OptionSpec>& specs, const OptionIndex& index, ParsedCommand& command) {
  struct Known {
    int spec;
    bool takes_value;
  };
  // The launchers' parsers take an unambiguous beginning of a long option for the option.
  const auto find = [&](const std::string& flag, std::string& canonical) -> Known {
    canonical = flag;
    if (const auto exact = index.find(flag); exact != index.end()) return {exact->second.first, exact->second.second};
    if (flag.size() <= 3 || flag.compare(0, 2, "--") != 0) return {-1, true};
    const OptionIndex::value_type* only = nullptr;
    for (const auto& entry : index) {
      if (entry.first.compare(0, flag.size(), flag) != 0) continue;
      if (only) return {-1, true};
      only = &entry;
    }
    if (!only) return {-1, true};
    canonical = only->first;
    return {only->second.first, only->second.second};
  };

  command.uses.clear();
  command.positional.clear();
  const auto& words = command.words;
  size_t i = command.options_begin;
  while (i < words.size()) {
    const std::string& word = words[i];
    // a pasted line may go on with a redirection or another command
    if (word == ">" || word == "2>" || word == ">>" || word == "|" || word == "&" || word == "&&" || word == "2>&1" ||
        word == ";")
      break;
    if (!looks_like_option(word)) {
      command.positional.push_back(word);
      ++i;
      continue;
    }
    OptionUse use;
    use.first = i;
    const size_t equal = word.find('=');
    std::string flag = word.substr(0, equal);
    if (equal != std::string::npos) {
      use.value = word.substr(equal + 1);
      use.has_value = true;
    }
    // _ in an option is taken for -, as vLLM's launcher does
    std::string dashed = flag;
    std::replace(dashed.begin() + std::min<size_t>(2, dashed.size()), dashed.end(), '_', '-');
    std::string canonical;
    Known known = find(flag, canonical);
    if (known.spec == -1 && dashed != flag) {
      const Known again = find(dashed, canonical);
      if (again.spec != -1) known = again;
    }
    if (const size_t dot = flag.find('.'); known.spec == -1 && dot != std::string::npos && dot + 1 < flag.size()) {
      std::string base = flag.substr(0, dot);
      std::replace(base.begin() + std::min<size_t>(2, base.size()), base.end(), '_', '-');
      const Known holder = find(base, canonical);
      if (holder.spec >= 0 && specs[static_cast<size_t>(holder.spec)].kind == OptionSpec::Kind::kJson) {
        known = holder;
        use.subkey = flag.substr(dot + 1);
      }
    }
    use.flag = canonical;
    use.spec = known.spec;
    ++i;
    if (!use.has_value && known.takes_value) {
      const bool many = known.spec < 0 || specs[static_cast<size_t>(known.spec)].kind == OptionSpec::Kind::kList;
      while (i < words.size() && !looks_like_option(words[i]) && words[i] != "|" && words[i] != "&" &&
             words[i] != "&&" && words[i] != ">" && words[i] != ";") {
        if (use.has_value) use.value += ' ';
        use.value += words[i++];
        use.has_value = true;
        if (!many) break;
      }
    }
    use.last = i;
    command.uses.push_back(std::move(use));
  }
}

size_t edit_distance(std::string_view a, std::string_view b) {
  constexpr size_t kLongest = 96;
  a = a.substr(0, kLongest);
  b = b.substr(0, kLongest);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t keep = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({keep, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t d = edit_distance(word, candidate);
    if (d < distance) {
      distance = d;
      best = candidate;
    }
  }
  return best;
}

}  // namespace kda::doctor
