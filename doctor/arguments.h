// What an engine's argument parser makes of a parsed command: typed values, and what it refuses with which text.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine.h"

namespace kda::doctor {

struct ArgumentError {
  std::string code;     // record of data/errors
  std::string field;    // of the option, or what else is wrong
  std::string message;  // the parser's own text
  std::string reason;
};

struct Arguments {
  std::vector<std::pair<std::string, Json>> values;  // field of an option, value; in the command's order
  std::vector<ArgumentError> errors;                 // in the order in which the parser finds them
  std::vector<std::string> unknown;                  // options that the description does not name, with their words
  std::vector<std::string> strays;                   // words that belong to no option
};

// Throws UsageError if the command asks for help, or if a value that matters is a variable of the user's shell.
Arguments read_arguments(const Engine& engine, const ParsedCommand& command);

// Numbers as Python's int() and float() read them ("1_000", " 8 ", "1e3", "inf"). An int past 10^15 is cut to it.
bool python_int(std::string_view text, long long& value);
bool python_float(std::string_view text, double& value);
// A text as Python's repr() shows it.
std::string python_repr(std::string_view text);

}  // namespace kda::doctor
