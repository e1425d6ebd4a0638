// An engine's description (engines/NAME.json, schema engines/schema.json) as data in memory, filtered for one version.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "command_line.h"
#include "expression.h"
#include "resources.h"

namespace kda::doctor {

// What happens when a step's condition holds or a kernel's need does not.
struct Consequence {
  std::string phase;    // the phase concerned; "launch" = the whole launch
  std::string outcome;  // refused, falls_back, wrong, unknown
  std::string when;     // launch, after_weights, first_use, per_call
  std::string code;     // record of data/errors
  std::string message;  // the engine's text, if it differs from the record's; {names} are filled in
  std::string reason;   // ours
  std::string to;       // falls_back: the kernel that runs instead
  bool logged = false;  // falls_back: the engine says so in its log
};

// One step of the engine's resolution, in the engine's order.
struct Step {
  std::string id, source;
  Expression when;
  std::vector<std::pair<std::string, Expression>> set;
  std::string note, note_phase;  // what to tell the user when it applies
  bool has_error = false;
  Consequence error;
  bool ranged = false;  // the row names the versions it holds for
  Json witness;         // a command that this fact decides; tests flip the fact and expect another answer
};

struct Need {
  std::string id, source;
  Expression need;
  Consequence otherwise;
  bool ranged = false;
  Json witness;
};

struct Variant {
  Expression when;
  std::string resolved, reason;
};

// A (phase, kernel name) pair of the engine's dispatcher; name "*" = any other name.
struct Kernel {
  std::string phase, name, resolved, reason, source;
  std::vector<Need> needs;
  std::vector<Variant> variants;
  bool ranged = false;
};

struct Phase {
  std::string name;
  Expression when;  // else unused
  std::string unused_reason;
  Expression requested;  // what the user asked for, null = nothing
  Expression named;      // whether the user named it
  Expression kernel;     // name looked up among the kernels
};

// A change to a command that the fix search may try.
struct Edit {
  std::string id, why;
  Expression when;
  std::vector<std::pair<std::string, std::string>> set;  // option -> value; "" = a flag without value
  std::vector<std::string> unset;
  std::vector<std::pair<std::string, std::string>> environment;  // name -> value
  double cost = 1;                                               // what the user gives up, for ranking
};

struct Engine {
  std::string name, title, version, newest;
  bool described = true;  // the version is one of those described exactly
  std::vector<Launcher> launchers;
  std::string model_field;  // option field that holds the model
  std::vector<OptionSpec> options;
  std::vector<OtherOption> other_options;
  OptionIndex option_index;
  struct Variable {
    std::string name, field;
    OptionSpec::Kind kind;
    Json preset;
  };
  std::vector<Variable> environment;
  // What its argument parser does beside taking options.
  struct Parser {
    std::map<std::string, std::string> codes;  // kind of complaint -> error record
    std::map<std::string, std::string> texts;  // type -> its text for a bad {value}, where it is not argparse's own
    std::vector<std::string> none_texts;       // values of a JSON option that mean "not given"
    std::vector<std::string> help;
    bool underscores = false, dotted_keys = false;
    bool complete = false;  // the description names every option of the version
  } parser;
  // How to read a command that was started by one of the launchers.
  ParserRules rules(const ParsedCommand& command) const;
  std::vector<Step> steps;
  std::vector<Phase> phases;
  std::vector<Kernel> kernels;
  std::vector<std::pair<std::string, Expression>> resolved;  // options after the engine's resolution
  std::vector<Edit> edits;
};

// Loads and filters a description. `version` empty = the newest described. Throws DataError.
Engine load_engine(const Json& description, const std::string& version, const std::string& file);

// Finds the launcher in the words and attaches the others to options. False if the words do not start this engine.
bool parse_command(const Engine& engine, const std::vector<std::string>& words, ParsedCommand& command);

// Launchers of a description. Throws DataError.
std::vector<Launcher> read_launchers(const Json& description, const std::string& file);

// "<0.5.23", ">=0.5.10 <0.5.23", "0.5.23", "*"
bool version_in(std::string_view version, std::string_view range);

}  // namespace kda::doctor
