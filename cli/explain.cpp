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

namespace kda::cli {
namespace {

using Ordered = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> words;
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

int run_explain(const Options& options, const Call& call) {
  try {
    const doctor::Catalogue catalogue{doctor::Resources(options.data)};
    if (!options.html.empty()) return write_pages(catalogue, options, call);
    if (options.list) return print_list(catalogue, call);
    std::string text;
    for (const std::string& word : options.words) text += (text.empty() ? "" : " ") + word;
    if (text == "-") text.assign(std::istreambuf_iterator<char>(std::cin), {});
    if (text.find_first_not_of(" \t\r\n") == std::string::npos)
      return call.fail("no code and no message given",
                       "kda explain CODE, kda explain \"message\", kda explain - < traceback, or --list");
    const auto matches = catalogue.search(text);
    const bool found = !matches.empty() && matches.front().exact;
    if (call.json) {
      if (found) {
        print_json(ordered(*matches.front().record));
      } else {
        Ordered out{{"found", false}, {"similar", Ordered::array()}};
        for (const doctor::Match& match : matches) out["similar"].push_back(match.record->value("id", ""));
        print_json(out);
      }
      return found ? kDone : kAnswerIsNo;
    }
    if (found) {
      const std::string out = doctor::record_text(*matches.front().record);
      std::fwrite(out.data(), 1, out.size(), stdout);
      for (size_t i = 1; i < matches.size(); ++i)
        std::printf("%s %s", i == 1 ? "Also in this text:" : "", matches[i].record->value("id", "").c_str());
      if (matches.size() > 1) std::printf("\n");
      return kDone;
    }
    if (matches.empty()) return call.fail("no record matches this text", "kda explain --list shows all", kAnswerIsNo);
    std::printf("No record matches exactly. Similar:\n");
    for (const doctor::Match& match : matches)
      std::printf("  %-32s %s\n", match.record->value("id", "").c_str(),
                  match.record->value("message_pattern", "").c_str());
    return kAnswerIsNo;
  } catch (const doctor::DataError& error) {
    return call.fail(error.what(), "leave out --data, or correct the file");
  }
}

}  // namespace

Action add_explain(CLI::App& command) {
  auto options = std::make_shared<Options>();
  command.add_option("text", options->words, "A code, an error message, or - for a traceback on standard input");
  command.add_flag("--list", options->list, "List all records (with --json: all of them as one list)");
  command.add_option("--data", options->data, "Folder with data/ that overrides the built-in one");
  command.add_option("--html", options->html, "Write the reference as pages into this folder");
  return [options](const Call& call) { return run_explain(*options, call); };
}

}  // namespace kda::cli
