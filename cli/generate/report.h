// What kda generate says about a run.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/generate/settings.h"
#include "model/speculation/generate.h"

namespace kda::cli {

// The object of --json. text: the output without end tokens.
nlohmann::ordered_json report_json(const std::vector<int32_t>& prompt, const speculation::GenerateResult& result,
                                   const std::string& text, const GenerateSettings& settings);

// One line: tokens, rounds, speed.
std::string report_line(const speculation::GenerateResult& result);

// Tokens after the first by the time they took; 0 when there are none.
double tokens_per_second(const speculation::GenerateResult& result);

}  // namespace kda::cli
