// One reference for libkda's codes and the engines' known KDA errors: find a record by code, message or traceback.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "resources.h"

namespace kda::doctor {

struct Match {
  const Json* record = nullptr;
  double score = 0;    // letters of the pattern found in the text
  bool exact = false;  // the code, or every fixed part of the pattern
};

class Catalogue {
 public:
  // Reads data/errors: engines*.json as they are, kda.json brought into the same form. Throws DataError.
  explicit Catalogue(const Resources& resources);

  // All records, sorted by id (schema: data/errors/schema.json).
  const std::vector<Json>& records() const { return records_; }
  const Json* find(std::string_view code) const;
  // Best first. The text can be a code, an error message with numbers in it, or a pasted traceback. If nothing matches
  // exactly, the most similar records (exact = false), possibly none.
  std::vector<Match> search(std::string_view text) const;

 private:
  struct Pattern {
    size_t record;
    std::vector<std::string> parts;  // fixed parts, simplified, in order
    size_t letters = 0;
  };
  std::vector<Json> records_;
  std::vector<Pattern> patterns_;
};

// Lower case, runs of blanks as one, quotes and ends trimmed: what messages are compared in.
std::string simplify(std::string_view text);

// A record as text for a terminal.
std::string record_text(const Json& record);
// The reference as pages: file name -> contents. index.html has a search that needs no server.
std::vector<std::pair<std::string, std::string>> error_pages(const Catalogue& catalogue);

}  // namespace kda::doctor
