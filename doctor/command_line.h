// A launch command as people paste it: environment prefixes, quotes, continued lines, a wrapper in front, a whole
// script.
#pragma once

#include <stdexcept>
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

// One simple command of a text, and the assignments that earlier commands exported to it ("NAME=value").
struct SimpleCommand {
  std::vector<std::string> words;
  std::vector<std::string> exported;
};

// Splits text into commands as a POSIX shell does: quotes, backslashes, continued lines, comments, ; & && | and line
// ends, redirections (left out). Variables that the text itself assigns are expanded, others stay as written; nothing
// is run. A line that begins with a dash continues the line before it, so that text wrapped by a page still reads.
// Throws UsageError for an open quote or more than 1 MiB.
std::vector<SimpleCommand> split_commands(std::string_view text);
// The words of all commands of a text.
std::vector<std::string> split_words(std::string_view text);
// The inverse, for printing: words that need it are quoted.
std::string join_words(const std::vector<std::string>& words);

// How a launcher takes the model as a word without an option.
enum class ModelWord {
  kNone,
  kFirst,            // the first word after the launcher
  kAny,              // the first word that belongs to no option
  kAnyUnlessOption,  // the same, unless the model's option is given
};

// Words that start an engine, in a row. "python*" stands for any Python with interpreter options; "-m MODULE" after it
// may be written as the interpreter allows. "NAME:*" is a container image with any tag, behind a word "run".
struct Launcher {
  std::vector<std::string> words;
  ModelWord model_word = ModelWord::kNone;
};

// How many words an option takes.
enum class Arity { kNone, kOne, kOneOrMore, kAnyNumber, kOptional };

// One option of an engine's launcher, from its description.
struct OptionSpec {
  std::vector<std::string> flags;  // with leading dashes, the canonical one first
  std::string field;               // name in conditions: opt.FIELD
  enum class Kind { kText, kInt, kFloat, kFlag, kNegated, kJson, kList } kind = Kind::kText;
  Json preset;                       // value when absent
  std::vector<std::string> choices;  // empty = any
  bool removed = false;              // known from older versions only: no beginning of a word stands for it
};

// An option without influence on KDA: only its form is checked.
struct OtherOption {
  std::vector<std::string> flags;
  Arity arity = Arity::kOne;
  enum class Type { kText, kInt, kFloat, kHuman, kJson, kJsonList } type = Type::kText;
};

// One use of an option in a command.
struct OptionUse {
  std::string flag;  // canonical spelling of what was written, without "=value"
  int spec = -1;     // index into the specs; -1 = none of them
  int other = -1;    // index into the other options; both -1 = the engine's description does not name it
  size_t first = 0;  // words [first, last) hold it
  size_t last = 0;
  std::vector<std::string> values;
  bool joined = false;                  // written as --option=value
  std::string subkey;                   // --config.key of a JSON option
  std::vector<std::string> candidates;  // more than one option begins so

  bool known() const { return spec >= 0 || other >= 0; }
  bool has_value() const { return !values.empty(); }
  std::string value() const;  // the values, separated by spaces
};

struct ParsedCommand {
  std::vector<std::string> words;
  std::vector<std::pair<std::string, std::string>> environment;
  size_t launcher = 0;       // index of the launcher
  size_t options_begin = 0;  // first word after the launcher
  size_t options_end = 0;    // past the last word that the engine sees
  std::vector<OptionUse> uses;
  std::string model;           // a word that names the model without an option
  std::vector<size_t> strays;  // words that belong to no option and that the engine does not expect
};

// Spellings an engine's parser accepts beside the plain ones.
struct ParserRules {
  bool underscores = false;                 // --tp_size for --tp-size
  bool dotted_keys = false;                 // --config.key value
  ModelWord model_word = ModelWord::kNone;  // of the launcher that was used
  std::string model_field;                  // OptionSpec::field that names the model
};

// Every option name of a launcher, in the description's order, with what it stands for.
struct OptionName {
  std::string name;
  int spec = -1, other = -1;
  Arity arity = Arity::kOne;
  bool removed = false;
};
struct OptionIndex {
  std::vector<OptionName> names;
  std::unordered_map<std::string, size_t> exact;  // name -> index into names
};
OptionIndex index_options(const std::vector<OptionSpec>& specs, const std::vector<OtherOption>& other_options);

// Finds the launcher that the words contain. Returns its index, or -1. Fills words, environment, launcher and
// options_begin.
int find_launcher(const std::vector<std::string>& words, const std::vector<Launcher>& launchers,
                  ParsedCommand& command);
// The command of `words` (or, if it is one text, of the commands in it; also inside a quoted `sh -c` text) that holds
// one of the launchers, with the assignments exported to it in front. Empty if none does. `count`: how many do.
std::vector<std::string> find_launch(const std::vector<std::string>& words, const std::vector<Launcher>& launchers,
                                     size_t* count = nullptr);

// Attaches the words after the launcher to options, as Python's argparse does. Unknown options keep the words up to the
// next option, since those may be their values.
void parse_options(const std::vector<OptionSpec>& specs, const OptionIndex& index, const ParserRules& rules,
                   ParsedCommand& command);

// Smallest number of single-character edits between two words; used to suggest names.
size_t edit_distance(std::string_view a, std::string_view b);
// The candidate nearest to `word` if it is near enough to be a slip, else "".
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace kda::doctor
