// Attaches words to options in the way of Python's argparse, which both engines' launchers use.
#include <algorithm>
#include <cctype>

#include "command_line.h"

namespace kda::doctor {

namespace {

constexpr size_t kMaxWords = 4096;

bool is_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

// -5, -0.5, -.5: a value, never an option.
bool is_negative_number(std::string_view word) {
  if (word.size() < 2 || word.front() != '-') return false;
  word.remove_prefix(1);
  const size_t dot = word.find('.');
  if (dot == std::string_view::npos) return is_digits(word);
  return (dot == 0 || is_digits(word.substr(0, dot))) && is_digits(word.substr(dot + 1));
}

bool is_operator(std::string_view word) {
  for (const char* text : {">", ">>", "2>", "2>&1", "&>", "<", "|", "||", "&", "&&", ";"})
    if (word == text) return true;
  return false;
}

// What a word is to the parser.
struct Reading {
  bool option = false;
  const OptionName* name = nullptr;  // null for an unknown or ambiguous option
  std::string flag;                  // canonical spelling
  bool joined = false;               // a value came with it
  std::string value, subkey;
  std::vector<std::string> candidates;  // ambiguous
};

class WordReader {
 public:
  WordReader(const std::vector<OptionSpec>& specs, const OptionIndex& index, const ParserRules& rules)
      : specs_(specs), index_(index), rules_(rules) {}

  Reading read(const std::string& word) const {
    Reading reading;
    if (word.size() < 2 || word.front() != '-') return reading;
    const bool is_long = word[1] == '-';
    const size_t equal = word.find('=');
    const std::string written = word.substr(0, equal);
    std::string flag = written;
    if (is_long && rules_.underscores) {
      const size_t dot = std::min(flag.find('.'), flag.size());
      std::replace(flag.begin() + 2, flag.begin() + static_cast<std::ptrdiff_t>(std::max<size_t>(2, dot)), '_', '-');
    }
    if (const auto whole = index_.exact.find(word); whole != index_.exact.end()) return known(whole->second, reading);
    if (equal != std::string::npos) {
      reading.joined = true;
      reading.value = word.substr(equal + 1);
    }
    if (const auto exact = index_.exact.find(flag); exact != index_.exact.end()) return known(exact->second, reading);
    if (const size_t dot = flag.find('.'); rules_.dotted_keys && is_long && dot != std::string::npos) {
      Reading holder = read(flag.substr(0, dot));
      if (holder.name && holder.name->spec >= 0 && !holder.joined && dot + 1 < flag.size() &&
          specs_[static_cast<size_t>(holder.name->spec)].kind == OptionSpec::Kind::kJson) {
        holder.subkey = flag.substr(dot + 1);
        holder.joined = reading.joined;
        holder.value = reading.value;
        return holder;
      }
    }
    abbreviation(word, flag, is_long, reading);
    if (reading.name || !reading.candidates.empty()) return reading;
    if (is_negative_number(word) || word.find(' ') != std::string::npos) return {};
    reading.option = true;
    reading.flag = written;
    return reading;
  }

 private:
  Reading known(size_t at, Reading reading) const {
    reading.option = true;
    reading.name = &index_.names[at];
    reading.flag = reading.name->name;
    return reading;
  }

  // The beginning of exactly one option stands for it; of several, it is an error. "-q8" is "-q 8".
  void abbreviation(const std::string& word, const std::string& flag, bool is_long, Reading& reading) const {
    const OptionName* only = nullptr;
    bool short_value = false;
    for (const OptionName& name : index_.names) {
      const bool with_value = !is_long && name.name.size() == 2 && word.compare(0, 2, name.name) == 0;
      const std::string& beginning = is_long ? flag : word;
      if (!with_value && (name.removed || name.name.compare(0, beginning.size(), beginning) != 0)) continue;
      reading.candidates.push_back(name.name);
      only = &name;
      short_value = with_value;
    }
    if (reading.candidates.empty()) return;
    reading.option = true;
    if (reading.candidates.size() > 1) {
      reading.flag = is_long ? flag : word;
      return;
    }
    reading.candidates.clear();
    reading.name = only;
    reading.flag = only->name;
    if (short_value) {
      reading.joined = true;
      reading.value = word.substr(word[2] == '=' ? 3 : 2);
    }
  }

  const std::vector<OptionSpec>& specs_;
  const OptionIndex& index_;
  const ParserRules& rules_;
};

}  // namespace

OptionIndex index_options(const std::vector<OptionSpec>& specs, const std::vector<OtherOption>& other_options) {
  OptionIndex index;
  const auto add = [&](OptionName name) {
    if (index.exact.try_emplace(name.name, index.names.size()).second) index.names.push_back(std::move(name));
  };
  for (size_t s = 0; s < specs.size(); ++s) {
    const OptionSpec::Kind kind = specs[s].kind;
    const Arity arity = kind == OptionSpec::Kind::kFlag || kind == OptionSpec::Kind::kNegated ? Arity::kNone
                        : kind == OptionSpec::Kind::kList                                     ? Arity::kOneOrMore
                                                                                              : Arity::kOne;
    for (const std::string& flag : specs[s].flags) add({flag, static_cast<int>(s), -1, arity, specs[s].removed});
  }
  for (size_t o = 0; o < other_options.size(); ++o)
    for (const std::string& flag : other_options[o].flags)
      add({flag, -1, static_cast<int>(o), other_options[o].arity, false});
  return index;
}

void parse_options(const std::vector<OptionSpec>& specs, const OptionIndex& index, const ParserRules& rules,
                   ParsedCommand& command) {
  const auto& words = command.words;
  if (words.size() > kMaxWords) throw UsageError("the command has more than 4096 words");
  const WordReader reader(specs, index, rules);
  std::vector<Reading> readings(words.size());
  size_t end = command.options_begin;
  bool only_words = false;  // after a word --
  for (; end < words.size() && !is_operator(words[end]); ++end) {
    if (!only_words) readings[end] = reader.read(words[end]);
    only_words = only_words || words[end] == "--";
    if (words[end] == "--") readings[end] = {};
  }
  command.options_end = end;
  command.uses.clear();
  command.strays.clear();
  command.model.clear();

  std::vector<size_t> free;  // words that belong to no option
  for (size_t i = command.options_begin; i < end;) {
    if (!readings[i].option) {
      free.push_back(i++);
      continue;
    }
    const Reading& reading = readings[i];
    OptionUse use;
    use.first = i++;
    use.flag = reading.flag;
    use.joined = reading.joined;
    use.subkey = reading.subkey;
    use.candidates = reading.candidates;
    // an unknown option may take any number of words
    const Arity arity = reading.name ? reading.name->arity : Arity::kAnyNumber;
    if (reading.name) {
      use.spec = reading.name->spec;
      use.other = reading.name->other;
    }
    if (reading.joined) {
      use.values.push_back(reading.value);
    } else {
      const size_t most = arity == Arity::kNone                               ? 0
                          : arity == Arity::kOne || arity == Arity::kOptional ? 1
                                                                              : words.size();
      while (i < end && use.values.size() < most && !readings[i].option && words[i] != "--")
        use.values.push_back(words[i++]);
    }
    use.last = i;
    command.uses.push_back(std::move(use));
  }

  ModelWord model_word = rules.model_word;
  if (model_word == ModelWord::kAnyUnlessOption) {
    model_word = ModelWord::kAny;
    for (const OptionUse& use : command.uses)
      if (use.spec >= 0 && specs[static_cast<size_t>(use.spec)].field == rules.model_field)
        model_word = ModelWord::kNone;
  }
  if (model_word == ModelWord::kFirst && !free.empty() && free[0] == command.options_begin) {
    command.model = words[free[0]];
    free.erase(free.begin());
  } else if (model_word == ModelWord::kAny) {
    free.erase(std::remove_if(free.begin(), free.end(), [&](size_t at) { return words[at] == "--"; }), free.end());
    if (!free.empty()) {
      command.model = words[free[0]];
      free.erase(free.begin());
    } else {
      // An unknown option may be a flag, and the model the word behind it.
      for (OptionUse& use : command.uses)
        if (!use.known() && use.candidates.empty() && !use.joined && use.has_value()) command.model = use.values.back();
    }
  }
  command.strays = std::move(free);
}

}  // namespace kda::doctor
