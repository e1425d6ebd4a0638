// kda explain: what a code, an error message or a traceback means, and the way out.
#include "doctor/explain.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "doctor/command_line.h"

namespace kda::cli {
namespace {

using Ordered = nlohmann::ordered_json;

struct Options {
  const CLI::App* command = nullptr;  // what is none of its options is the text, even if it begins with dashes
  std::string data, html;
  bool list = false;
};

// The fields in the order of the published schema.
Ordered ordered(const doctor::Json& record) {
  Ordered out;
  for (const char* key :
       {"id", "engine", "versions", "error_class", "message_pattern", "also", "message", "phase", "when", "meaning",
        "triggers", "situations", "solutions", "example_fix", "validation", "related", "tags", "source"})
    if (record.contains(key)) out[key] = Ordered(record[key]);
  return out;
}

int write_pages(const doctor::Catalogue& catalogue, const Options& options, const Call& call) {
  std::error_code error;
  std::filesystem::create_directories(options.html, error);
  for (const auto& [name, text] : doctor::error_pages(catalogue)) {
    std::ofstream file(options.html + "/" + name, std::ios::binary);
    file << text;
    if (!file.flush()) return call.fail("cannot write " + options.html + "/" + name);
  }
  return kDone;
}

int print_list(const doctor::Catalogue& catalogue, const Call& call) {
  if (call.json) {
    Ordered all = Ordered::array();
    for (const doctor::Json& record : catalogue.records()) all.push_back(ordered(record));
    print_json(all);
    return kDone;
  }
  for (const doctor::Json& record : catalogue.records())
    std::printf("%-32s %-7s %-14s %s\n", record.value("id", "").c_str(), record.value("engine", "").c_str(),
                record.value("phase", "").c_str(), record.value("message_pattern", "").c_str());
  return kDone;
}

constexpr const char* kWaysIn =
    "kda explain CODE, kda explain \"message\", kda explain - < traceback, or kda explain --list";

// The words of the text. `mistyped`: one that seems to be meant as an option of this command, "" if there is none.
std::string text_of(const Options& options, const Call& call, std::string* mistyped) {
  std::vector<std::string> words = options.command->remaining();
  for (const std::string& word : words) {
    if (word.size() < 3 || word[0] != '-' || word.find_first_of(" =") != std::string::npos) continue;
    for (const CLI::Option* own : options.command->get_options())
      for (const std::string& name : own->get_lnames())
        if (doctor::edit_distance(word, "--" + name) <= 2) *mistyped = word;
  }
  words.insert(words.end(), call.words.begin(), call.words.end());
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

int print_similar(const std::vector<doctor::Match>& matches, const Call& call) {
  if (call.json) {
    Ordered out{{"found", false}, {"similar", Ordered::array()}};
    for (const doctor::Match& match : matches) out["similar"].push_back(match.record->value("id", ""));
    print_json(out);
    return kAnswerIsNo;
  }
  if (matches.empty())
    return call.fail("no record of a KDA error matches this text",
                     "paste the whole message, or kda explain --list shows all", kAnswerIsNo);
  std::printf("No record matches exactly. Similar:\n");
  for (const doctor::Match& match : matches)
    std::printf("  %-32s %s\n", match.record->value("id", "").c_str(),
                match.record->value("message_pattern", "").c_str());
  return kAnswerIsNo;
}

int run_explain(const Options& options, const Call& call) {
  std::string mistyped, text = text_of(options, call, &mistyped);
  if (!mistyped.empty())
    return call.fail("unknown option '" + mistyped + "'",
                     "kda explain --help; or -- in front of a text that begins so, or kda explain - < FILE");
  if (options.list + !options.html.empty() + !text.empty() > 1)
    return call.fail("expected one of a text, --list and --html, found more", kWaysIn);
  try {
    const doctor::Catalogue catalogue{doctor::Resources(options.data)};
    if (!options.html.empty()) return write_pages(catalogue, options, call);
    if (options.list) return print_list(catalogue, call);
    if (text == "-") text.assign(std::istreambuf_iterator<char>(std::cin), {});
    if (text.find_first_not_of(" \t\r\n") == std::string::npos)
      return call.fail("no code and no message given", kWaysIn);
    const auto matches = catalogue.search(text);
    if (matches.empty() || !matches.front().exact) return print_similar(matches, call);
    if (call.json) {
      Ordered out = ordered(*matches.front().record);
      for (size_t i = 1; i < matches.size(); ++i) out["shares_text_with"].push_back(matches[i].record->value("id", ""));
      print_json(out);
      return kDone;
    }
    const std::string out = doctor::record_text(*matches.front().record);
    std::fwrite(out.data(), 1, out.size(), stdout);
    for (size_t i = 1; i < matches.size(); ++i)
      std::printf("%s %s", i == 1 ? "This text also fits:" : "", matches[i].record->value("id", "").c_str());
    if (matches.size() > 1) std::printf("\n");
    return kDone;
  } catch (const doctor::DataError& error) {
    return call.fail(error.what(), "leave out --data, or correct the file");
  }
}

}  // namespace

Action add_explain(CLI::App& command) {
  auto options = std::make_shared<Options>();
  options->command = &command;
  command.allow_extras();
  command.description(command.get_description() +
                      "\n  kda explain CODE | kda explain \"MESSAGE\" | kda explain - < TRACEBACK");
  command.add_flag("--list", options->list, "List all records (with --json: all of them as one list)");
  command.add_option("--data", options->data, "Folder with data/ that overrides the built-in one");
  command.add_option("--html", options->html, "Write the reference as pages into this folder");
  return [options](const Call& call) { return run_explain(*options, call); };
}

}  // namespace kda::cli
