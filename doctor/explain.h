// One reference for libkda's codes and the engines' known KDA errors: find a record by code, message or traceback.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "message_pattern.h"
#include "resources.h"

namespace kda::doctor {

struct Match {
  const Json* record = nullptr;
  double score = 0;    // letters of the pattern found in the text
  bool exact = false;  // the code, the message, or a piece of it that few messages share
};

// What stands for {flag} in messages, and for every option of their engine in texts compared with them: a message about
// another program's option is none of these.
constexpr std::string_view kAnyOption = "--option";

class Catalogue {
 public:
  // Reads data/errors: engines*.json as they are, kda.json brought into the same form. Throws DataError.
  explicit Catalogue(const Resources& resources);

  // All records, sorted by id (schema: data/errors/schema.json).
  const std::vector<Json>& records() const { return records_; }
  const Json* find(std::string_view code) const;
  // Best first. The text can be a code, an error message with other numbers in it, a message cut at either end, or a
  // pasted traceback; several exact ones share the text. If nothing matches exactly, the most similar records
  // (exact = false), possibly none.
  std::vector<Match> search(std::string_view text) const;
  // Every option of an engine's launcher, with its dashes, in the form of comparable().
  const std::vector<std::string>& options_of(const std::string& engine) const;

 private:
  struct Pattern {
    size_t record;
    bool names_an_option;  // any of the engine's own, as kAnyOption
    MessagePattern message;
  };
  struct Candidate;
  std::vector<Candidate> candidates(const std::string& text) const;
  std::vector<Match> matching(const std::string& text) const;
  std::vector<Match> named_codes(const std::string& text) const;
  std::vector<Match> mistyped_code(const std::string& text) const;
  std::vector<Match> similar(const std::string& text) const;
  // "sglang", "vllm" or "": the one that the text names, or whose options are in it.
  std::string implied_engine(const std::string& text) const;

  std::vector<Json> records_;
  std::vector<Pattern> patterns_;
  std::map<std::string, std::vector<std::string>> options_;  // sorted
  std::map<std::string, size_t> word_records_;               // word -> records whose messages have it
};

// Lower case, runs of blanks as one, quotes as ', ends trimmed: what codes are compared in.
std::string simplify(std::string_view text);

// A record as text for a terminal.
std::string record_text(const Json& record);
// The reference as pages: file name -> contents. index.html has a search that needs no server.
std::vector<std::pair<std::string, std::string>> error_pages(const Catalogue& catalogue);

}  // namespace kda::doctor
