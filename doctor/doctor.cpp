#include "doctor.h"

#include <algorithm>
#include <cctype>

namespace kda::doctor {

namespace {

// "0.5.23", "0.33.0rc1", "0.5.23.post1", "13.0": digits and dots, then perhaps letters and more.
bool is_version(const std::string& text) {
  size_t at = 0, parts = 0;
  while (at < text.size() && std::isdigit(static_cast<unsigned char>(text[at]))) {
    size_t digits = 0;
    for (; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])); ++at) ++digits;
    if (digits > 8) return false;
    ++parts;
    if (at + 1 < text.size() && text[at] == '.' && std::isdigit(static_cast<unsigned char>(text[at + 1]))) ++at;
  }
  const std::string rest = text.substr(at);
  const auto begins = [&](const char* name) { return rest.rfind(name, 0) == 0; };
  return parts > 0 && text.size() < 40 &&
         (rest.empty() || begins("a") || begins("b") || begins("rc") || begins(".post") || begins("post") ||
          begins(".dev") || begins("dev") || begins("+"));
}

// flash-kda and flash_kda are one package.
std::string package_name(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string plain_version(const std::string& text, const std::string& option, const std::string& example) {
  std::string version = text.size() > 1 && text[0] == 'v' ? text.substr(1) : text;
  if (!version.empty() && !is_version(version))
    throw UsageError(option + ": expected a version such as " + example + ", found '" + text + "'");
  return version;
}

}  // namespace

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
    const std::vector<Launcher> launchers = read_launchers(description, file);
    if (!find_launch(words, launchers).empty()) {
      const std::string newest = description.at("described").back().get<std::string>();
      return load_engine(description, plain_version(version, "--engine-version", newest), file);
    }
    for (const Launcher& launcher : launchers) {
      known += known.empty() ? "" : ", ";
      for (size_t i = 0; i < launcher.words.size(); ++i) {
        const std::string& word = launcher.words[i];
        const bool image = word.size() > 2 && word.compare(word.size() - 2, 2, ":*") == 0;
        known += (i ? " " : "") + (word == "python*" ? std::string("python")
                                   : image           ? "docker run " + word.substr(0, word.size() - 2)
                                                     : word);
      }
    }
  }
  throw UsageError("no launch command found; known launchers: " + known);
}

Report Doctor::diagnose(const Question& question) const {
  bool empty = true;
  for (const std::string& word : question.words)
    empty = empty && word.find_first_not_of(" \t\r\n") == std::string::npos;
  if (empty) throw UsageError("the launch command is missing: kda doctor [options] -- COMMAND...");
  return diagnose(question, engine_for(question.words, question.engine_version));
}

Report Doctor::diagnose(const Question& question, const Engine& engine) const {
  size_t launches = 0;
  ParsedCommand command;
  if (!parse_command(engine, find_launch(question.words, engine.launchers, &launches), command))
    throw UsageError("the command does not start " + engine.title);
  const std::string cuda = plain_version(question.cuda_version, "--cuda-version", "12.9");
  check_packages(question.installed, "--installed");
  check_packages(question.missing, "--missing");

  std::string label;
  const Json config = find_model(question, engine, command, label);
  const Gpu gpu = find_gpu(question.gpu);
  Scope scope;
  add_model_facts(config, scope);
  const std::string architecture = scope.get("model.architecture").get<std::string>();
  scope.set("config", nullptr);  // long; all facts are out of it
  scope.set("gpu", gpu.facts);
  scope.set("gpu.name", gpu.name);
  if (!cuda.empty()) scope.set("gpu.cuda_version", cuda);
  for (const std::string& name : question.installed) scope.set("installed." + package_name(name), true);
  for (const std::string& name : question.missing) {
    if (scope.get("installed." + package_name(name)) == Json(true))
      throw UsageError(name + " is named in --installed and in --missing");
    scope.set("installed." + package_name(name), false);
  }
  scope.set("engine.version", engine.version);
  scope.set("engine.title", engine.title);

  Report report = evaluate(engine, command, scope);
  report.engine["model"] = label;
  report.engine["architecture"] = architecture;
  report.engine["gpu"] = gpu.name;
  if (launches > 1)
    report.engine["notes"].push_back("the text holds " + std::to_string(launches) +
                                     " launches; this is the first one: " + join_words(command.words));
  if (question.fixes && (report.verdict == "fails" || report.verdict == "degraded"))
    find_fixes(engine, command, scope, report);
  return report;
}

void Doctor::check_packages(const std::vector<std::string>& names, const char* option) const {
  if (names.empty()) return;
  static const std::string key = "installed.";
  std::vector<std::string> known;
  for (const auto& [file, description] : descriptions_) {
    const std::string text = resources_.text(file);
    for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
      size_t end = at + key.size();
      while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_')) ++end;
      known.push_back(text.substr(at + key.size(), end - at - key.size()));
    }
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), package_name(name)) != known.end()) continue;
    std::string all;
    for (const std::string& item : known) all += (all.empty() ? "" : ", ") + item;
    throw UsageError(std::string(option) + ": no answer depends on '" + name + "'; expected one of " + all);
  }
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
  if (architecture.empty()) {
    std::string known;
    for (const Json& family : families_.at("families"))
      known += (known.empty() ? "" : ", ") + family.at("architectures").at(0).get<std::string>();
    throw UsageError("the model's config.json has no \"architectures\" that names one: expected a list, such as " +
                     known + "; is it the config.json of the model, and whole?");
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
  for (const char* key : {"name", "version", "described", "model", "architecture", "gpu", "unknown_options",
                          "stray_words", "notes", "resolved"})
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
