// A launch command as people paste it: environment prefixes, quotes, continued lines, a wrapper in front.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "expression.h"

namespace kda::doctor {

// The command cannot be understood as a launch command: one clear line for the user.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Splits text as a POSIX shell splits words (quotes, backslashes, continued lines, comments), without expanding
// anything. Throws UsageError for an open quote or text past 1 MiB.
std::vector<std::string> split_words(std::string_view text);
// The inverse, for printing: words that need it are quoted.
std::string join_words(const std::vector<std::string>& words);

// One option of an engine's launcher, from its description.
struct OptionSpec {
  std::vector<std::string> flags;  // with leading dashes, the canonical one first
  std::string field;               // name in conditions: opt.FIELD
  enum class Kind { kText, kInt, kFloat, kFlag, kNegated, kJson, kList } kind = Kind::kText;
  Json preset;                       // value when absent
  std::vector<std::string> choices;  // empty = any
};

// One use of an option in a command.
struct OptionUse {
  std::string flag;  // as written, without "=value"
  int spec = -1;     // index into the specs; -1 = the engine's description does not name it
  size_t first = 0;  // words [first, last) hold it
  size_t last = 0;
  std::string value;
  std::string subkey;  // --config.key of a JSON option
  bool has_value = false;
};

struct ParsedCommand {
  std::vector<std::string> words;
  std::vector<std::pair<std::string, std::string>> environment;
  size_t options_begin = 0;  // first word after the launcher
  std::vector<OptionUse> uses;
  std::vector<std::string> positional;  // words that belong to no option
};

// Every option name of a launcher -> (index into its specs, or -2 for one that only takes words; whether it takes a
// value).
using OptionIndex = std::unordered_map<std::string, std::pair<int, bool>>;
OptionIndex index_options(const std::vector<OptionSpec>& specs,
                          const std::vector<std::vector<std::string>>& other_flags);

// Launchers are lists of words that must appear in a row ("python*" matches python, python3.12, a path ending so).
// Returns the index into `launchers`, or -1. Fills words, environment and options_begin.
int find_launcher(const std::vector<std::string>& words, const std::vector<std::vector<std::string>>& launchers,
                  ParsedCommand& command);
// Attaches the words after the launcher to options. Unknown options take the words up to the next option.
void parse_options(const std::vector<OptionSpec>& specs, const OptionIndex& index, ParsedCommand& command);

// Smallest number of single-character edits between two words; used to suggest names.
size_t edit_distance(std::string_view a, std::string_view b);
// The candidate nearest to `word` if it is near enough to be a slip, else "".
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace kda::doctor
