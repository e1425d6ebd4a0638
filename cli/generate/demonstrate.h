// kda generate --demonstrate: the same prompt with speculation and without, tokens and speed side by side.
#pragma once

#include <string>

#include "cli/command.h"
#include "cli/generate/runner.h"

namespace kda::cli {

// Returns the exit code: kAnswerIsNo if the tokens differ.
int demonstrate(Runner& runner, const GenerateSettings& settings, const speculation::GenerateOptions& options,
                const std::string& prompt, const Call& call);

}  // namespace kda::cli
