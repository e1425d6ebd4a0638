#include "doctor.h"

#include <algorithm>

namespace kda::doctor {

std::vector<std::string> command_words(const std::vector<std::string>& words) {
  if (words.size() == 1) return split_words(words[0]);
  return words;
}

Doctor::Doctor(Resources resources) : resources_(std::move(resources)) {
  for (const std::string& name : resources_.list("engines/"))
    if (name != "engines/schema.json") descriptions_.emplace_back(name, resources_.json(name));
  gpus_ = resources_.json("data/gpus.json");
  families_ = resources_.json("data/model_families.json");
  for (const std::string& name : resources_.list("data/models/")) models_.push_back(resources_.json(name));
  errors_ = Json::object();
  for (const std::string& name : resources_.list("data/errors/engines")) {
    const Json records = resources_.json(name);
    for (const Json& record : records.at("records")) errors_[record.at("id").get<std::string>()] = record;
  }
}

Engine Doctor::engine_for(const std::vector<std::string>& words, const std::string& version) const {
  std::string known;
  for (const auto& [file, description] : descriptions_) {
    const auto launchers = description.at("launchers").get<std::vector<std::vector<std::string>>>();
    ParsedCommand command;
    if (find_launcher(words, launchers, command) >= 0) return load_engine(description, version, file);
    for (const auto& launcher : launchers) known += (known.empty() ? "" : ", ") + join_words(launcher);
  }
  throw UsageError("no launch command found; known launchers: " + known);
}

Report Doctor::diagnose(const Question& question) const {
  const auto words = command_words(question.words);
  if (words.empty()) throw UsageError("the launch command is missing: kda doctor [options] -- COMMAND...");
  return diagnose(question, engine_for(words, question.engine_version));
}

Report Doctor::diagnose(const Question& question, const Engine& engine) const {
  const auto words = command_words(question.words);
  ParsedCommand command;
  if (find_launcher(words, engine.launchers, command) < 0)
    throw UsageError("the command does not start " + engine.title);
  parse_options(engine.options, engine.option_index, command);

  std::string label;
  const Json config = find_model(question, engine, command, label);
  const Gpu gpu = find_gpu(question.gpu);
  Scope scope;
  add_model_facts(config, scope);
  const std::string architecture = scope.get("model.architecture").get<std::string>();
  scope.set("config", nullptr);  // long; all facts are out of it
  scope.set("gpu", gpu.facts);
  scope.set("gpu.name", gpu.name);
  if (!question.cuda_version.empty()) scope.set("gpu.cuda_version", question.cuda_version);
  for (const std::string& name : question.installed) scope.set("installed." + name, true);
  for (const std::string& name : question.missing) scope.set("installed." + name, false);
  scope.set("engine.version", engine.version);

  Report report = evaluate(engine, command, scope);
  report.engine["model"] = label;
  report.engine["architecture"] = architecture;
  report.engine["gpu"] = gpu.name;
  if (question.fixes && (report.verdict == "fails" || report.verdict == "degraded"))
    find_fixes(engine, command, scope, report);
  return report;
}

void Doctor::add_model_facts(const Json& config, Scope& scope) const {
  scope.set("config", config);
  // Model facts: the family of the config's first architecture says where they are.
  const Json architectures = config.value("architectures", Json::array());
  const std::string architecture = architectures.is_array() && !architectures.empty() && architectures[0].is_string()
                                       ? architectures[0].get<std::string>()
                                       : "";
  scope.set("model.architecture", architecture);
  for (const Json& family : families_.at("families")) {
    const auto names = family.at("architectures").get<std::vector<std::string>>();
    if (std::find(names.begin(), names.end(), architecture) == names.end()) continue;
    scope.set("model.family", family.at("family"));
    for (const auto& [fact, text] : family.at("facts").items()) {
      try {
        scope.set("model." + fact, Expression::parse(text.get<std::string>()).evaluate(scope));
      } catch (const ExpressionError& error) {
        throw DataError("data/model_families.json: " + std::string(error.what()));
      }
    }
  }
  if (scope.get("model.family").is_null())
    throw UsageError("the model's architecture \"" + architecture + "\" is not a KDA model that the doctor knows");
  for (const char* fact : {"heads", "value_heads", "head_dim"})
    if (!scope.get(std::string("model.") + fact).is_number_integer() ||
        scope.get(std::string("model.") + fact).get<long long>() < 1 ||
        scope.get(std::string("model.") + fact).get<long long>() > 1000000)
      throw UsageError("the model's config gives no usable number of " + std::string(fact));
}

int exit_code(const Report& report) {
  if (report.verdict == "runs") return 0;
  if (report.verdict == "fails") return 1;
  return report.verdict == "degraded" ? 3 : 4;
}

nlohmann::ordered_json to_json(const Report& report) {
  using Ordered = nlohmann::ordered_json;
  Ordered phases = Ordered::array(), fixes = Ordered::array(), engine;
  const auto text_or_null = [](const std::string& text) { return text.empty() ? Ordered() : Ordered(text); };
  for (const PhaseReport& p : report.phases) {
    Ordered row;
    row["phase"] = p.phase;
    row["requested"] = Ordered(p.requested);
    row["resolved"] = Ordered(p.resolved);
    row["outcome"] = p.outcome;
    row["when"] = text_or_null(p.when);
    row["code"] = text_or_null(p.code);
    row["message"] = text_or_null(p.message);
    row["reason"] = p.reason;
    phases.push_back(std::move(row));
  }
  for (const Fix& fix : report.fixes) {
    Ordered row;
    row["command"] = fix.command;
    row["changes"] = fix.changes;
    row["why"] = fix.why;
    fixes.push_back(std::move(row));
  }
  for (const char* key :
       {"name", "version", "described", "model", "architecture", "gpu", "unknown_options", "notes", "resolved"})
    if (report.engine.contains(key)) engine[key] = Ordered(report.engine[key]);
  Ordered out;
  out["verdict"] = report.verdict;
  out["engine"] = std::move(engine);
  out["phases"] = std::move(phases);
  out["fixes"] = std::move(fixes);
  return out;
}

std::string to_table(const Report& report) {
  std::string out = report.engine.value("name", "") + " " + report.engine.value("version", "") + ", " +
                    report.engine.value("architecture", "") + ", " + report.engine.value("gpu", "") + ": " +
                    report.verdict + "\n\n";
  const auto cell = [](std::string text, size_t width) {
    text.resize(std::max(width, text.size()), ' ');
    return text + "  ";
  };
  const auto shown = [](const Json& value) { return value.is_null() ? std::string("-") : to_text(value); };
  size_t requested = 9, resolved = 8;
  for (const PhaseReport& p : report.phases) {
    requested = std::max(requested, shown(p.requested).size());
    resolved = std::max(resolved, shown(p.resolved).size());
  }
  out += cell("phase", 13) + cell("outcome", 10) + cell("when", 13) + cell("requested", requested) +
         cell("resolved", resolved) + "code\n";
  for (const PhaseReport& p : report.phases) {
    out += cell(p.phase, 13) + cell(p.outcome, 10) + cell(p.when.empty() ? "-" : p.when, 13) +
           cell(shown(p.requested), requested) + cell(shown(p.resolved), resolved) + p.code + "\n";
    if (!p.message.empty()) out += "    says: " + p.message + "\n";
    if (!p.reason.empty()) out += "    why:  " + p.reason + "\n";
  }
  const Json& unknown = report.engine.value("unknown_options", Json::array());
  for (const Json& option : unknown) out += "\noption not known here: " + option.get<std::string>();
  if (!unknown.empty()) out += "\n";
  const Json& notes = report.engine.value("notes", Json::array());
  for (const Json& note : notes) out += "\nnote: " + note.get<std::string>();
  if (!notes.empty()) out += "\n";
  for (size_t i = 0; i < report.fixes.size(); ++i) {
    const Fix& fix = report.fixes[i];
    out += "\nfix " + std::to_string(i + 1) + (fix.verdict == "runs" ? "" : " (" + fix.verdict + ")") + ": " + fix.why +
           "\n";
    for (const std::string& change : fix.changes) out += "    " + change + "\n";
    out += "    " + join_words(fix.command) + "\n";
  }
  return out;
}

}  // namespace kda::doctor
