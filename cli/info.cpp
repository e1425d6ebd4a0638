// kda info: what this machine and this build can do.
#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/context.h"

namespace kda::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  int threads = 0;
};

int run_info(const Options& options, const Call& call) {
  const io::Result<ContextPointer> context = open_context(options.threads, "", /*with_cuda=*/true);
  if (!context) return call.fail(context.error());
  const io::Result<std::string> description = describe_context(context->get());
  if (!description) return call.fail(description.error());
  const Json machine = Json::parse(*description, nullptr, /*allow_exceptions=*/false);
  if (!machine.is_object()) return call.fail("the library's description of the machine is no JSON object");
  print_json(machine);
  return kDone;
}

}  // namespace

Action add_info(CLI::App& command) {
  auto options = std::make_shared<Options>();
  add_threads_option(command, options->threads);
  return [options](const Call& call) { return run_info(*options, call); };
}

}  // namespace kda::cli
