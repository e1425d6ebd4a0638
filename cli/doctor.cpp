// kda doctor: what SGLang or vLLM will do with a launch command of a KDA model, without starting it.
#include "doctor/doctor.h"

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"

namespace kda::cli {
namespace {

struct Options {
  doctor::Question question;
  std::string data;
  bool no_fixes = false;
};

int run_doctor(const Options& options, const Call& call) {
  try {
    const doctor::Doctor doctor{doctor::Resources(options.data)};
    doctor::Question question = options.question;
    question.fixes = !options.no_fixes;
    question.words.insert(question.words.end(), call.words.begin(), call.words.end());
    const doctor::Report report = doctor.diagnose(question);
    if (question.gpu.empty() && report.engine.value("gpu", "") == "cpu")
      call.note("no GPU found here, answering for a CPU; --gpu NAME answers for another machine");
    if (call.json) {
      print_json(doctor::to_json(report));
    } else {
      const std::string table = doctor::to_table(report);
      std::fwrite(table.data(), 1, table.size(), stdout);
    }
    return doctor::exit_code(report);
  } catch (const doctor::UsageError& error) {
    return call.fail(error.what());
  } catch (const doctor::DataError& error) {
    return call.fail(error.what(), "leave out --data, or correct the file");
  }
}

}  // namespace

Action add_doctor(CLI::App& command) {
  auto options = std::make_shared<Options>();
  // An unset variable in quotes is a slip; it must not silently mean "not given".
  CLI::Validator not_empty;
  not_empty.operation([](std::string& text) {
    return text.find_first_not_of(" \t") == std::string::npos ? std::string("expected a value, found an empty one")
                                                              : std::string();
  });
  doctor::Question& q = options->question;
  command
      .add_option("--gpu", q.gpu,
                  "GPU by name (h200, a100, rtx4090, b200, gb300) or sm_NN; default: the one found here")
      ->check(not_empty);
  command.add_option("--engine-version", q.engine_version, "Version of the engine; default: the newest described")
      ->check(not_empty);
  command.add_option("--model-config", q.model_config, "config.json of the model (file or folder)")->check(not_empty);
  command.add_option("--installed", q.installed, "Optional packages that are installed, e.g. helion,flash_kda")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(not_empty);
  command.add_option("--missing", q.missing, "Optional packages that are not installed")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(not_empty);
  command
      .add_option("--cuda-version", q.cuda_version, "CUDA version of the engine's torch; default: what the engine pins")
      ->check(not_empty);
  command.add_option("--data", options->data, "Folder with engines/ and data/ that override the built-in ones")
      ->check(not_empty);
  command.add_flag("--no-fixes", options->no_fixes, "Do not search for changed commands that run");
  command.add_option("command", q.words, "-- and the launch command, as words or as one quoted text");
  command.footer("Exit codes: 0 runs, 1 fails, 2 wrong use, 3 degraded, 4 unknown.");
  return [options](const Call& call) { return run_doctor(*options, call); };
}

}  // namespace kda::cli
