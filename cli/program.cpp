#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "io/file.h"
#include "kda/kda.h"

namespace kda::cli {
namespace {

struct CommandRow {
  const char* name;
  const char* summary;
  Action (*add)(CLI::App&);
};
constexpr CommandRow kCommands[] = {
#define KDA_COMMAND(name, summary) {#name, summary, &add_##name},
#include "cli/commands.def"
#undef KDA_COMMAND
};

// CLI11's texts can quote arguments of several lines; a message is one line.
std::string one_line(std::string_view text) { return io::printable(text, 600); }

constexpr const char* kLaunchCommand = "command";  // of kda doctor: words of another program, empty ones too

// An option that is given empty is a variable that was not set in a script, never a wish.
void refuse_empty_values(CLI::App& command) {
  constexpr const char* kMayBeEmpty = "--prompt";
  for (CLI::Option* option : command.get_options()) {
    if (option->get_expected_max() == 0 || option->check_name(kMayBeEmpty) || option->check_name(kLaunchCommand))
      continue;
    option->check(
        [](const std::string& value) { return value.empty() ? "expected a value, found none" : std::string(); });
  }
}

// "--gpu=" would take the word behind it as its value.
const char* option_without_value(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") return nullptr;
    if (word.size() > 3 && word.substr(0, 2) == "--" && word.find_first_of("= ") == word.size() - 1 &&
        word.back() == '=')
      return argv[i];
  }
  return nullptr;
}

int parse_and_run(int argc, const char* const* argv) {
  CLI::App program("Kimi Delta Attention for inference", "kda");
  program.require_subcommand(0, 1);
  program.set_version_flag("--version", std::string("kda ") + kda_version());
  bool json = false;
  std::vector<std::pair<CLI::App*, Action>> actions;
  for (const CommandRow& row : kCommands) {
    CLI::App* command = program.add_subcommand(row.name, row.summary);
    command->add_flag("--json", json, "Print one JSON object on stdout");
    command->footer("Exit codes: 0 done, 1 the answer is no, 2 wrong use, or what this machine or build cannot do.");
    actions.emplace_back(command, row.add(*command));  // doctor has a footer of its own
    refuse_empty_values(*command);
  }
  const auto chosen = [&]() -> CLI::App* {
    const auto parsed = program.get_subcommands();
    return parsed.empty() ? nullptr : parsed.front();
  };
  int parsed_until = argc;  // words behind the "--" of a launch command or a message are not for CLI11
  const bool takes_words = argc > 1 && (std::strcmp(argv[1], "doctor") == 0 || std::strcmp(argv[1], "explain") == 0);
  for (int i = 2; i < argc && takes_words && parsed_until == argc; ++i)
    if (std::strcmp(argv[i], "--") == 0) parsed_until = i;
  const std::vector<std::string> words(argv + std::min(parsed_until + 1, argc), argv + argc);
  if (const char* option = option_without_value(parsed_until, argv)) {
    fmt::print(stderr, "kda: {}: expected a value, found none; way out: kda --help\n", one_line(option));
    return kWrongUse;
  }
  try {
    program.parse(parsed_until, argv);
  } catch (const CLI::Success& help) {  // --help, --version
    std::string text = help.get_name() == "CallForVersion" ? std::string(help.what()) + "\n"
                                                           : program.help();  // of the chosen command, if there is one
    std::fputs(text.c_str(), stdout);
    return kDone;
  } catch (const CLI::ParseError& error) {
    CLI::App* command = chosen();
    const std::string name = command != nullptr ? "kda " + command->get_name() : std::string("kda");
    // CLI11 looks for what is missing before what is too much; a mistyped option explains both.
    const std::vector<std::string> unknown = (command != nullptr ? command : &program)->remaining();
    std::string text = error.what();
    const bool takes_any = command != nullptr && command->get_allow_extras();
    if (!takes_any && !unknown.empty() && unknown.front() != "--") {
      text = fmt::format("unknown {} '{}'",
                         unknown.front().rfind('-', 0) == 0 ? "option"
                         : command != nullptr               ? "argument"
                                                            : "command",
                         unknown.front());
    }
    const bool is_launch = command != nullptr && command->get_option_no_throw(kLaunchCommand) != nullptr;
    const bool is_unknown = !unknown.empty() && unknown.front() != "--";
    fmt::print(stderr, "{}: {}; way out: {}{} --help\n", name, one_line(text),
               is_launch && is_unknown ? "put -- before the launch command, or see " : "", name);
    return kWrongUse;
  }
  for (const auto& [command, action] : actions) {
    if (!command->parsed()) continue;
    const std::string name = command->get_name();
    return action(Call{name, json, words});
  }
  fmt::print(stderr, "kda: expected a command, found none; way out: kda --help\n");
  return kWrongUse;
}

}  // namespace

int Call::fail(std::string_view text, std::string_view way_out, int exit_code) const {
  std::string line = fmt::format("kda {}: {}", command, one_line(text));
  if (!way_out.empty()) line += fmt::format("; way out: {}", one_line(way_out));
  fmt::print(stderr, "{}\n", line);
  return exit_code;
}

void Call::note(std::string_view text) const { fmt::print(stderr, "kda {}: {}\n", command, one_line(text)); }

void print_json(const nlohmann::ordered_json& value) {
  const std::string text = value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
}

int run(int argc, const char* const* argv) {
  int exit_code = kWrongUse;
  try {
    exit_code = parse_and_run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("kda: out of memory; way out: a smaller input or a machine with more memory\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kda: unexpected error: %s; way out: report it with the command line\n",
                 one_line(error.what()).c_str());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fprintf(stderr, "kda: cannot write to stdout: %s\n", std::strerror(errno));
    if (exit_code == kDone) exit_code = kWrongUse;
  }
  return exit_code;
}

}  // namespace kda::cli
