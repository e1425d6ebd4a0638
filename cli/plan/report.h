// The answer of kda plan, as JSON and as a table.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/plan/estimate.h"
#include "cli/plan/question.h"

namespace kda::cli::plan {

// A GPU, of any vendor, and not "cpu".
bool is_gpu(const doctor::Gpu& machine);

// {"model", "machine", "notes", "backend", ..., "phases": [{"phase", "kernel", "bytes_per_layer",
// "expected_us_per_layer", "candidates": [{"kernel", "taken", "code", "reason"}]}], "bytes", "sequences",
// "cost_model"}; times and what fits are null where they are not known.
nlohmann::ordered_json report_json(const Options& options, const Question& question, const doctor::Gpu& gpu,
                                   const kda_plan* plan, const kda_plan_info& info, const CostModel& cost);

void print_report(const nlohmann::ordered_json& report);

}  // namespace kda::cli::plan
