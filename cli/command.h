// How a subcommand joins the kda program, and what all of them share: exit codes, messages, JSON.
//
// A new subcommand is cli/NAME.cpp with `Action add_NAME(CLI::App& command)` and one line in commands.def:
//   kda::cli::Action kda::cli::add_NAME(CLI::App& command) {
//     auto options = std::make_shared<Options>();
//     command.add_option("--threads", options->threads, "...");   // --help and --json come from the program
//     return [options](const Call& call) { ...; return kDone; };
//   }
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

namespace kda::cli {

// Exit codes of every command. `kda doctor` adds its own above kWrongUse.
enum ExitCode : int {
  kDone = 0,
  kAnswerIsNo = 1,  // it ran, and the answer is no: a comparison failed, a search found nothing
  kWrongUse = 2,    // bad options or bad files, or something this machine or build cannot do
};

// A number as people write it: decimal, nothing around it, finite. Not hexadecimal, octal (010 is read as neither 8 nor
// 10), nan or +1.
template <class T>
bool parse_decimal(std::string_view text, T& value) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const std::string_view digits = text.substr(!text.empty() && text[0] == '-' ? 1 : 0);
  if (digits.empty() || !(is_digit(digits[0]) || digits[0] == '.')) return false;
  if (digits.size() > 1 && digits[0] == '0' && is_digit(digits[1])) return false;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return stop == end && error == std::errc();
}

// An option's check: a number of type T from `least` to `most`. What is not a number is said to be none.
template <class T>
CLI::Validator number_between(T least, T most) {
  const std::string range = fmt::format("a {}number from {} to {}", std::is_integral_v<T> ? "whole " : "", least, most);
  CLI::Validator check;
  check.operation([=](std::string& text) {
    T value{};
    const bool inside = parse_decimal(text, value) && value >= least && value <= most;
    return inside ? std::string() : fmt::format("expected {}, found '{}'", range, text);
  });
  return check;
}

// What the program knows of one invocation.
struct Call {
  std::string_view command;  // "replay"
  bool json = false;         // --json: one JSON object on stdout
  // doctor and explain: the words behind "--", as they are. CLI11 would read "[1,2]" among them as a list of its own.
  std::vector<std::string> words{};

  // Prints "kda COMMAND: TEXT; way out: WAY_OUT" as one line on stderr and returns the exit code.
  int fail(std::string_view text, std::string_view way_out = {}, int exit_code = kWrongUse) const;
  // Prints a line on stderr: progress, warnings.
  void note(std::string_view text) const;
};

// Runs a parsed subcommand; returns the exit code.
using Action = std::function<int(const Call&)>;

#define KDA_COMMAND(name, summary) Action add_##name(CLI::App& command);
#include "cli/commands.def"
#undef KDA_COMMAND

// Prints one JSON value and a newline on stdout. Text that is not UTF-8 is replaced, numbers that JSON lacks are null.
void print_json(const nlohmann::ordered_json& value);

// The whole program; never throws. Flushes stdout and turns a failure to write it into an exit code.
int run(int argc, const char* const* argv);

}  // namespace kda::cli
