// kda_doctor: what an inference engine will do with a launch command of a KDA model, phase by phase, without starting
// it.
#pragma once

#include <string>
#include <vector>

#include "engine.h"

namespace kda::doctor {

struct PhaseReport {
  std::string phase;    // launch, extend, decode, target_verify, commit, snapshots
  Json requested;       // what the user named, or null
  Json resolved;        // the kernel that runs, or null
  std::string outcome;  // runs, falls_back, wrong, refused, unknown, unused
  std::string when;     // launch, after_weights, first_use, per_call; empty = nothing happens
  std::string code;     // record of `kda explain`; empty = none
  std::string message;  // the engine's own text; empty = it says nothing
  std::string reason;
  std::vector<std::string> deciding;  // ids of the facts that led here
};

struct Fix {
  std::vector<std::string> command;
  std::vector<std::string> changes;
  std::string why;
  std::string verdict;  // of the changed command: runs or degraded
};

struct Report {
  std::string verdict;  // runs, fails, degraded, unknown
  Json engine;          // name, version, model, gpu, unknown_options, notes, resolved options
  std::vector<PhaseReport> phases;
  std::vector<Fix> fixes;
  Json scope;  // every variable after the walk
};

struct Gpu {
  std::string name;
  Json facts;  // vendor, major, minor, sm, memory_gib
};

// A launch command and what it is judged against.
struct Question {
  std::vector<std::string> words;      // the command, already split; a single word is a text and is split
  std::string gpu;                     // "h200", "sm_90", "cpu"; empty = detect
  std::string engine_version;          // empty = the newest described
  std::string model_config;            // path of a config.json; empty = from the command
  std::vector<std::string> installed;  // optional packages known to be installed (helion, flash_kda, ...)
  std::vector<std::string> missing;    // and known to be absent
  std::string cuda_version;            // empty = what the engine's packages bring
  bool fixes = true;
};

class Doctor {
 public:
  // Throws DataError if a description is not as its schema says.
  explicit Doctor(Resources resources);

  // Throws UsageError with one clear line if the command, the config or a name cannot be understood.
  Report diagnose(const Question& question) const;

  // For tests and tools: the same with the engine's description given.
  Report diagnose(const Question& question, const Engine& engine) const;
  // The engine whose launcher the words (or the text in them) contain, at a version (empty = newest). Throws
  // UsageError.
  Engine engine_for(const std::vector<std::string>& words, const std::string& version) const;

  // Throws UsageError unless every name is a package that some description asks for.
  void check_packages(const std::vector<std::string>& names, const char* option) const;
  Gpu find_gpu(const std::string& name) const;
  // A model's config.json: from a file or folder (`config_path`, if given), else from the model's folder or known name.
  Json find_config(const std::string& model, const std::string& config_path) const;
  // Sets model.* (heads, head_dim, gate_lower_bound, ...) from a config. Throws UsageError if it is no KDA model.
  void add_model_facts(const Json& config, Scope& scope) const;
  const Resources& resources() const { return resources_; }

 private:
  struct Facts;  // model and gpu, as scope values
  Json find_model(const Question& question, const Engine& engine, const ParsedCommand& command,
                  std::string& label) const;
  Report evaluate(const Engine& engine, const ParsedCommand& command, const Scope& base) const;
  void find_fixes(const Engine& engine, const ParsedCommand& command, const Scope& base, Report& report) const;

  Resources resources_;
  std::vector<std::pair<std::string, Json>> descriptions_;  // file, engine description
  Json gpus_, families_, errors_;
  std::vector<Json> models_;
};

nlohmann::ordered_json to_json(const Report& report);
std::string to_table(const Report& report);
// 0 runs, 1 fails, 3 degraded, 4 unknown
int exit_code(const Report& report);

}  // namespace kda::doctor
