// kda info: what this machine and this build can do.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/context.h"
#include "cli/selftest.h"

namespace kda::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  int threads = 0;
  bool self_test = false;
};

std::string text_of(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end()) return "";
  return it->is_string() ? it->get<std::string>() : it->dump();
}

const Json& list_of(const Json& object, const char* key) {
  static const Json none = Json::array();
  const auto it = object.find(key);
  return it != object.end() && it->is_array() ? *it : none;
}

void print_table(const Json& machine) {
  fmt::print("kda {}  (ABI {}, records {}, exported state {})\n", text_of(machine, "version"),
             text_of(machine, "abi_version"), text_of(machine, "record_version"),
             text_of(machine, "exported_state_version"));
  fmt::print("cores         {} usable, {} threads\n", text_of(machine, "usable_cores"), text_of(machine, "threads"));
  for (const Json& backend : list_of(machine, "backends")) {
    const std::string reason = text_of(backend, "reason");
    fmt::print("backend       {:<10} {}\n", text_of(backend, "name"),
               backend.value("available", false) ? "yes" : "no: " + reason);
  }
  for (const Json& target : list_of(machine, "cpu_targets")) {
    fmt::print("SIMD target   {:<10} {}{}\n", text_of(target, "name"), target.value("available", false) ? "yes" : "no",
               target.value("used", false) ? ", in use" : "");
  }
  const std::string gpu = text_of(machine, "gpu");
  fmt::print("GPU           {}\n", gpu == "0" || gpu.empty() ? "none" : "compute capability " + gpu);
  for (const Json& code : list_of(machine, "gpu_code")) {
    fmt::print("GPU code      sm_{:<7} {}\n", text_of(code, "architecture"),
               code.value("ran_on_hardware", false) ? "tested on hardware" : "compiled, not tested on hardware");
  }
  for (const Json& kernel : list_of(machine, "kernels")) {
    fmt::print("kernel        {:<28} {:<20} {}\n", text_of(kernel, "name"), text_of(kernel, "operation"),
               text_of(kernel, "summary"));
  }
}

// Compares every kernel of the machine's usable backends with the reference. Fills `results`; true if all are right.
bool run_self_test(const kda_context* context, const Json& machine, bool quiet, Json* results) {
  bool all = true;
  for (const Json& kernel : list_of(machine, "kernels")) {
    const std::string backend = text_of(kernel, "backend");
    const auto usable = [&](const Json& row) {
      return text_of(row, "name") == backend && row.value("available", false);
    };
    const Json& backends = list_of(machine, "backends");
    if (backend == "reference" || std::none_of(backends.begin(), backends.end(), usable)) continue;
    bool ran = false;
    for (const SelfTestResult& result :
         self_test(context, text_of(kernel, "name"), text_of(kernel, "operation"), backend_from_name(backend))) {
      ran = ran || result.ran;
      all = all && (result.pass || !result.ran);
      const char* verdict = !result.ran ? "not served" : result.pass ? "pass" : "FAIL";
      results->push_back({{"kernel", result.kernel},
                          {"operation", result.operation},
                          {"shape", result.shape},
                          {"ran", result.ran},
                          {"pass", result.pass},
                          {"error_over_limit", result.error},
                          {"detail", result.detail}});
      if (quiet) continue;
      fmt::print("self-test     {:<28} {:<24} {:<10} error/limit {:.3f}{}{}\n", result.kernel, result.shape, verdict,
                 result.error, result.detail.empty() ? "" : "  ", result.detail);
    }
    all = all && ran;  // a kernel that no shape reaches has not been tested
  }
  return all;
}

int run_info(const Options& options, const Call& call) {
  const io::Result<ContextPointer> context = open_context(options.threads, "", /*with_cuda=*/true);
  if (!context) return call.fail(context.error());
  const io::Result<Json> description = describe_context(context->get());
  if (!description) return call.fail(description.error());
  Json machine = *description;
  if (!call.json) print_table(machine);
  bool right = true;
  if (options.self_test) {
    Json results = Json::array();
    right = run_self_test(context->get(), machine, call.json, &results);
    machine["self_test"] = {{"pass", right}, {"results", results}};
  }
  if (call.json) print_json(machine);
  return right ? kDone : kAnswerIsNo;
}

}  // namespace

Action add_info(CLI::App& command) {
  auto options = std::make_shared<Options>();
  add_threads_option(command, options->threads);
  command.add_flag("--self-test", options->self_test, "Compare every kernel with the reference on a few shapes");
  return [options](const Call& call) { return run_info(*options, call); };
}

}  // namespace kda::cli
