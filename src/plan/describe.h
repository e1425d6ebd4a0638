// Contexts and plans as JSON, for `kda info`, `kda plan` and replay files.
#pragma once

#include <string>

#include "plan/plan.h"

namespace kda {

std::string describe_context(const kda_context& context);
std::string describe_plan(const kda_plan& plan);

}  // namespace kda
