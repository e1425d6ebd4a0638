#include "command_line.h"

#include <algorithm>
#include <cctype>
#include <map>

namespace kda::doctor {

namespace {

constexpr size_t kMaxCommandBytes = 1 << 20;
// Texts inside texts: docker's `sh -c "bash -c '...'"` is two.
constexpr int kMaxNesting = 3;

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || std::isdigit(static_cast<unsigned char>(c)); }
bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)); }

bool is_assignment(std::string_view word) {
  const size_t equal = word.find('=');
  return equal != std::string_view::npos && equal > 0 && is_name_start(word[0]) &&
         std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equal), is_name_part);
}

// Splits one text. Keeps the variables that its commands assign.
class Splitter {
 public:
  explicit Splitter(std::string_view text) : text_(text) {
    if (text.size() > kMaxCommandBytes) throw UsageError("the command is longer than 1 MiB");
  }

  std::vector<SimpleCommand> run() {
    for (at_ = 0; at_ < text_.size(); ++at_) step(text_[at_]);
    end_command();
    return std::move(commands_);
  }

 private:
  char peek(size_t ahead = 1) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  void add(char c) {
    word_ += c;
    open_ = true;
    count();
  }

  void count() {
    if (++produced_ > 2 * kMaxCommandBytes) throw UsageError("the command grows past 1 MiB by its own variables");
  }

  void step(char c) {
    if (c == '\\') {
      if (at_ + 1 >= text_.size()) return;
      ++at_;
      if (text_[at_] == '\r' && peek() == '\n') ++at_;
      if (text_[at_] != '\n') add(text_[at_]);
    } else if (c == '\'' || c == '"') {
      quoted(c);
    } else if (c == '\n') {
      end_word();
      if (!array_.empty()) return;
      size_t next = at_;
      while (next < text_.size() && is_space(text_[next])) ++next;
      if (next >= text_.size() || text_[next] != '-') end_command();
    } else if (is_space(c)) {
      end_word();
    } else if (c == '#' && !open_) {
      while (at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
    } else if (c == '&' && peek() == '>') {
      end_word();
      ++at_;
      redirection();
    } else if (c == ';' || c == '&' || c == '|') {
      end_command();
    } else if (c == '>' || c == '<') {
      if (!open_ || !std::all_of(word_.begin(), word_.end(), [](unsigned char d) { return std::isdigit(d); }))
        end_word();
      word_.clear();  // the number of a file descriptor
      open_ = false;
      redirection();
    } else if (c == '$' && peek() == '(') {
      for (int depth = 0; at_ < text_.size(); ++at_) {
        depth += text_[at_] == '(' ? 1 : text_[at_] == ')' ? -1 : 0;
        add(text_[at_]);
        if (depth == 0 && text_[at_] == ')') break;
      }
    } else if (c == '$') {
      if (expand_array()) return;
      std::string value;
      if (!variable(value)) {
        add(c);
        return;
      }
      for (const char d : value) {
        if (is_space(d))
          end_word();
        else
          add(d);
      }
    } else if (c == '(' && open_ && array_.empty() && is_assignment(word_) && word_.back() == '=') {
      array_ = word_.substr(0, word_.find('='));  // NAME=(...)
      word_.clear();
      open_ = false;
      outer_ = std::move(command_.words);
      command_.words.clear();
    } else if (c == ')' && !array_.empty()) {
      end_word();
      arrays_[array_] = std::move(command_.words);
      command_.words = std::move(outer_);
      array_.clear();
    } else if (c == '(' && !open_ && command_.words.empty()) {  // a subshell
    } else {
      add(c);
    }
  }

  void quoted(char quote) {
    open_ = true;
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
      char c = text_[at_];
      if (quote == '"' && c == '\\' && at_ + 1 < text_.size()) {
        const char next = text_[at_ + 1];
        if (next == '"' || next == '\\' || next == '$' || next == '`') {
          c = next;
          ++at_;
        } else if (next == '\n') {
          ++at_;
          continue;
        }
      } else if (quote == '"' && c == '$') {
        if (expand_array()) continue;
        std::string value;
        if (variable(value)) {
          for (const char d : value) add(d);
          continue;
        }
      }
      add(c);
    }
    if (at_ >= text_.size()) throw UsageError(std::string("a quote is not closed: ") + quote);
  }

  // ${NAME[@]} at at_, if the text has set the array: adds its words and moves to the closing brace.
  bool expand_array() {
    const size_t close = peek() == '{' ? text_.find("[@]}", at_) : std::string_view::npos;
    if (close == std::string_view::npos) return false;
    const auto array = arrays_.find(std::string(text_.substr(at_ + 2, close - at_ - 2)));
    if (array == arrays_.end()) return false;
    const std::vector<std::string> words = array->second;
    if (words.empty() && word_.empty()) open_ = false;
    for (size_t i = 0; i < words.size(); ++i) {
      if (i > 0) end_word();
      open_ = true;
      for (const char c : words[i]) add(c);
    }
    at_ = close + 3;
    return true;
  }

  // $NAME, ${NAME} or ${NAME:-default} at at_, if its value is known: moves to its last character.
  bool variable(std::string& value) {
    size_t begin = at_ + 1;
    const bool braces = begin < text_.size() && text_[begin] == '{';
    if (braces) ++begin;
    size_t end = begin;
    while (end < text_.size() && is_name_part(text_[end])) ++end;
    if (end == begin || !is_name_start(text_[begin])) return false;
    const auto known = variables_.find(std::string(text_.substr(begin, end - begin)));
    if (known != variables_.end()) value = known->second;
    if (!braces) {
      if (known == variables_.end()) return false;
      at_ = end - 1;
      return true;
    }
    const size_t close = text_.find('}', end);
    if (close == std::string_view::npos) return false;
    std::string_view rest = text_.substr(end, close - end);
    if (!rest.empty()) {
      if (rest[0] == ':') rest.remove_prefix(1);
      if (rest.empty() || rest[0] != '-' || rest.find('$') != std::string_view::npos) return false;
      if (known == variables_.end() || known->second.empty()) value = std::string(rest.substr(1));
    } else if (known == variables_.end()) {
      return false;
    }
    at_ = close;
    return true;
  }

  // After a < or > at at_: the operator's other characters; its target is the next word.
  void redirection() {
    while (peek() == '>' || peek() == '<' || peek() == '|') ++at_;
    if (peek() == '&') {
      ++at_;
      while (std::isdigit(static_cast<unsigned char>(peek())) || peek() == '-') ++at_;
      return;
    }
    skip_next_ = true;
  }

  void end_word() {
    count();
    if (open_ && !skip_next_) command_.words.push_back(std::move(word_));
    if (open_) skip_next_ = false;
    word_.clear();
    open_ = false;
  }

  void end_command() {
    end_word();
    if (!array_.empty()) return;  // ; and & have no place in an array
    skip_next_ = false;
    const auto& words = command_.words;
    if (words.empty()) return;
    const bool exports = words[0] == "export";
    const bool assigns = std::all_of(words.begin() + (exports ? 1 : 0), words.end(), [&](const std::string& word) {
      return is_assignment(word) || (exports && std::all_of(word.begin(), word.end(), is_name_part));
    });
    if (assigns) {
      for (size_t i = exports ? 1 : 0; i < words.size(); ++i) {
        const size_t equal = words[i].find('=');
        const std::string name = words[i].substr(0, equal);
        if (equal != std::string::npos) variables_[name] = words[i].substr(equal + 1);
        const auto value = variables_.find(name);
        if (exports && value != variables_.end()) exported_[name] = value->second;
      }
    }
    for (const auto& [name, value] : exported_) command_.exported.push_back(name + "=" + value);
    commands_.push_back(std::move(command_));
    command_ = {};
  }

  std::string_view text_;
  size_t at_ = 0, produced_ = 0;
  std::string word_;
  bool open_ = false;       // a word has begun, possibly an empty quoted one
  bool skip_next_ = false;  // the next word is a redirection's file
  SimpleCommand command_;
  std::vector<SimpleCommand> commands_;
  std::map<std::string, std::string> variables_, exported_;
  std::string array_;               // the array whose words are being read
  std::vector<std::string> outer_;  // the command's words in front of it
  std::map<std::string, std::vector<std::string>> arrays_;
};

bool matches(std::string_view pattern, std::string_view word) {
  const size_t slash = word.rfind('/');
  if (slash != std::string_view::npos) word.remove_prefix(slash + 1);
  if (pattern.size() > 2 && pattern.substr(pattern.size() - 2) == ":*") {  // a container image with any tag
    pattern.remove_suffix(2);
    return word.substr(0, pattern.size()) == pattern && (word.size() == pattern.size() || word[pattern.size()] == ':');
  }
  if (!pattern.empty() && pattern.back() == '*') {
    pattern.remove_suffix(1);
    if (word.substr(0, pattern.size()) != pattern) return false;
    word.remove_prefix(pattern.size());
    if (!word.empty() && word.back() == 't') word.remove_suffix(1);  // python3.13t, without the lock
    return std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c) || c == '.'; });
  }
  return pattern == word;
}

// What a Python started at words[at] runs behind its options: the module of -m ("-u -X dev -m", "-um"), or the name of
// a script's file. Moves `at` to it. Empty if it runs something else.
std::string python_target(const std::vector<std::string>& words, size_t& at, bool& is_module) {
  is_module = false;
  for (++at; at < words.size(); ++at) {
    const std::string& word = words[at];
    if (word == "--check-hash-based-pycs") {
      ++at;
      continue;
    }
    if (word.empty() || word == "-") return {};
    if (word[0] != '-') return word.substr(word.rfind('/') + 1);
    for (size_t i = 1; i < word.size(); ++i) {
      if (word[i] == 'm') {
        is_module = true;
        if (i + 1 == word.size() && ++at >= words.size()) return {};
        return i + 1 < word.size() ? word.substr(i + 1) : words[at];
      }
      if (word[i] == 'X' || word[i] == 'W') {  // takes the rest of the word, or the next one
        if (i + 1 == word.size()) ++at;
        break;
      }
      if (std::string_view("bBdEiIOPqRsSuvx").find(word[i]) == std::string_view::npos) return {};
    }
  }
  return {};
}

// The index past the launcher's words if it stands at words[at], else 0.
size_t match_launcher(const Launcher& launcher, const std::vector<std::string>& words, size_t at) {
  const auto& pattern = launcher.words;
  size_t from = 0;
  if (pattern.size() >= 2 && pattern[0] == "python*") {
    const bool wants_module = pattern[1] == "-m";
    std::string target;
    bool is_module = true;
    if (matches(pattern[0], words[at])) {
      target = python_target(words, at, is_module);
    } else if (matches("uv", words[at]) && at + 3 < words.size() && words[at + 1] == "run" &&
               (words[at + 2] == "-m" || words[at + 2] == "--module")) {
      at += 3;
      target = words[at];
    }
    from = wants_module ? 3 : 2;
    if (is_module != wants_module || target != pattern[from - 1]) return 0;
    ++at;
  }
  if (at + pattern.size() - from > words.size()) return 0;
  const bool is_image = pattern[0].size() > 2 && pattern[0].substr(pattern[0].size() - 2) == ":*";
  if (is_image && std::find(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(at), "run") ==
                      words.begin() + static_cast<std::ptrdiff_t>(at))
    return 0;
  for (size_t i = from; i < pattern.size(); ++i, ++at)
    if (!matches(pattern[i], words[at])) return 0;
  return at;
}

std::vector<std::string> find_launch_in(const std::vector<std::string>& words, const std::vector<Launcher>& launchers,
                                        size_t& count, int nesting) {
  std::vector<SimpleCommand> commands;
  if (words.size() == 1)
    commands = split_commands(words[0]);
  else
    commands.push_back({words, {}});
  std::vector<std::string> found;
  for (const SimpleCommand& command : commands) {
    ParsedCommand parsed;
    if (find_launcher(command.words, launchers, parsed) < 0) continue;
    if (count++ > 0) continue;
    found = command.exported;
    found.insert(found.end(), command.words.begin(), command.words.end());
  }
  if (count > 0 || nesting >= kMaxNesting) return found;
  for (const SimpleCommand& command : commands) {
    std::vector<std::string> front = command.exported;
    for (const std::string& word : command.words) {
      if (is_assignment(word)) {
        front.push_back(word);
        continue;
      }
      if (command.words.size() < 2 || std::none_of(word.begin(), word.end(), is_space)) continue;
      std::vector<std::string> inner;
      try {
        inner = find_launch_in({word}, launchers, count, nesting + 1);
      } catch (const UsageError&) {  // a text, but no shell text
      }
      if (inner.empty()) continue;
      front.insert(front.end(), inner.begin(), inner.end());
      return front;
    }
  }
  return {};
}

}  // namespace

std::string OptionUse::value() const {
  std::string out;
  for (size_t i = 0; i < values.size(); ++i) out += (i ? " " : "") + values[i];
  return out;
}

std::vector<SimpleCommand> split_commands(std::string_view text) { return Splitter(text).run(); }

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  for (SimpleCommand& command : split_commands(text))
    words.insert(words.end(), std::make_move_iterator(command.words.begin()),
                 std::make_move_iterator(command.words.end()));
  return words;
}

std::string join_words(const std::vector<std::string>& words) {
  const auto quote = [](std::string_view word) {
    const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
      return std::isalnum(c) || std::string_view("-_=./:,@%+").find(static_cast<char>(c)) != std::string_view::npos;
    });
    if (plain) return std::string(word);
    std::string out = "'";
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
  };
  std::string out;
  for (const std::string& word : words) {
    if (!out.empty()) out += ' ';
    // a quoted name would be no assignment any more
    const size_t value = is_assignment(word) ? word.find('=') + 1 : 0;
    out += word.substr(0, value);
    if (value == 0 || value < word.size()) out += quote(std::string_view(word).substr(value));
  }
  return out;
}

int find_launcher(const std::vector<std::string>& words, const std::vector<Launcher>& launchers,
                  ParsedCommand& command) {
  for (size_t at = 0; at < words.size(); ++at) {
    for (size_t l = 0; l < launchers.size(); ++l) {
      const size_t end = match_launcher(launchers[l], words, at);
      if (end == 0) continue;
      command.words = words;
      command.launcher = l;
      command.options_begin = end;
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

std::vector<std::string> find_launch(const std::vector<std::string>& words, const std::vector<Launcher>& launchers,
                                     size_t* count) {
  size_t found = 0;
  std::vector<std::string> launch = find_launch_in(words, launchers, found, 0);
  if (count) *count = found;
  return launch;
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
