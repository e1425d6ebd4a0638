// Walks an engine's resolution steps and its kernels' needs for one command.
#include <algorithm>
#include <cctype>

#include "arguments.h"
#include "doctor.h"

namespace kda::doctor {

namespace {

constexpr size_t kMaxFallbacks = 8;

const Kernel* find_kernel(const Engine& engine, const std::string& phase, const std::string& name) {
  const Kernel* any = nullptr;
  for (const Kernel& kernel : engine.kernels) {
    if (kernel.phase != phase) continue;
    if (kernel.name == name) return &kernel;
    // "*" stands for any other name, "group/*" for any other name of the group
    const bool rest =
        kernel.name == "*" || (kernel.name.size() > 2 && kernel.name.compare(kernel.name.size() - 2, 2, "/*") == 0 &&
                               name.compare(0, kernel.name.size() - 1, kernel.name, 0, kernel.name.size() - 1) == 0);
    if (rest && (!any || kernel.name.size() > any->name.size())) any = &kernel;
  }
  return any;
}

struct Evaluation {
  const Engine& engine;
  const Json& errors;
  Scope scope;
  std::vector<PhaseReport> phases;
  std::vector<std::pair<std::string, std::string>> notes;  // phase, text
  std::vector<std::string> later;                          // launch errors behind the first one

  std::string message_of(const Consequence& c) const {
    if (!c.message.empty()) return fill(c.message, scope);
    const auto record = c.code.empty() ? errors.end() : errors.find(c.code);
    if (record == errors.end()) return {};
    if (record->contains("message")) return fill(record->value("message", ""), scope);
    std::string text = record->value("message_pattern", "");
    const std::string open_end = "{details}";  // what only the running engine knows
    if (text.size() > open_end.size() && text.compare(text.size() - open_end.size(), open_end.size(), open_end) == 0) {
      text.resize(text.size() - open_end.size());
      while (!text.empty() && text.back() == ' ') text.pop_back();
    }
    return fill(text, scope);
  }

  PhaseReport* row(const std::string& phase) {
    for (PhaseReport& report : phases)
      if (report.phase == phase) return &report;
    return nullptr;
  }

  void apply(const Consequence& c, const std::string& fact, bool sure) {
    PhaseReport report;
    report.phase = c.phase;
    report.outcome = c.outcome;
    report.when = c.when;
    report.code = c.code;
    report.message = message_of(c);
    report.reason = fill(c.reason, scope);
    report.deciding = {fact};
    apply(std::move(report), sure);
  }

  void apply(PhaseReport report, bool sure) {
    const PhaseReport c = report;  // as described, before any doubt
    if (!sure) doubt(report);
    // Errors that stop the launch concern the whole launch too: its row shows the first of them.
    PhaseReport* launch = row("launch");
    const bool stops = c.outcome == "refused" && (c.when == "launch" || c.phase == "launch");
    if (stops) {
      if (launch->outcome == "refused" || (launch->outcome == "unknown" && report.outcome == "unknown")) {
        later.push_back(report.message);
      } else {
        PhaseReport first = report;
        first.phase = "launch";
        *launch = first;
      }
    } else if (c.phase == "launch" && launch->outcome == "runs") {
      *launch = report;
      launch->phase = "launch";
    }
    if (PhaseReport* own = row(c.phase);
        own && c.phase != "launch" && own->outcome != "refused" && own->outcome != "unused") {
      report.requested = own->requested;
      *own = report;
    }
  }

  // An answer for a version that is not described exactly is only a guess unless its row names the version.
  void doubt(PhaseReport& report) const {
    const bool newer = compare_versions(engine.version, engine.newest) > 0;
    report.reason = "version " + engine.version + " is not described" + (newer ? "" : " exactly") +
                    "; as described for " + engine.newest + ": " + report.outcome +
                    (report.reason.empty() ? "" : ", " + report.reason) +
                    ". To settle it: launch once, or describe the version (docs/doctor.md)";
    report.outcome = "unknown";
  }

  void resolve(const Phase& phase) {
    PhaseReport& report = *row(phase.name);
    if (report.outcome == "refused" || report.outcome == "wrong" || report.outcome == "unknown" ||
        report.outcome == "unused")
      return;
    const bool named = phase.named.truth(scope);
    std::string name = to_text(phase.kernel.evaluate(scope));
    scope.set("kernel", name);
    std::string enumerator = name;
    for (char& c : enumerator) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    scope.set("kernel_enum", enumerator);
    const Consequence* fallback = nullptr;
    std::string fallback_message, fallback_reason;
    bool sure = engine.described;
    for (size_t step = 0; step < kMaxFallbacks; ++step) {
      const Kernel* kernel = find_kernel(engine, phase.name, name);
      if (!kernel) {
        report.outcome = "unknown";
        report.reason = "no kernel of this name is described for the phase: " + name + ". The engine's log settles it";
        return;
      }
      sure = sure || kernel->ranged;
      const Need* unmet = nullptr;
      for (const Need& need : kernel->needs) {
        if (!need.need.truth(scope)) {
          unmet = &need;
          break;
        }
      }
      if (!unmet) {
        report.resolved = kernel->resolved;
        std::string reason = kernel->reason;
        for (const Variant& variant : kernel->variants) {
          if (!variant.when.truth(scope)) continue;
          report.resolved = variant.resolved;
          reason = variant.reason;
          break;
        }
        report.reason = fill(fallback ? fallback_reason + (reason.empty() ? "" : "; " + reason) : reason, scope);
        if (fallback && named) {
          report.when = fallback->when;
          report.code = fallback->code;
          report.message = fallback_message;
          report.outcome = "falls_back";
        } else {
          report.outcome = "runs";
        }
        if (!sure) doubt(report);
        return;
      }
      sure = sure || unmet->ranged;
      report.deciding.push_back(unmet->id);
      const Consequence& c = unmet->otherwise;
      if (c.outcome != "falls_back") {
        report.outcome = c.outcome;
        report.when = c.when;
        report.code = c.code;
        report.message = message_of(c);
        report.reason = (fallback ? fallback_reason + "; " : "") + fill(c.reason, scope);
        if (!sure) doubt(report);
        if (c.outcome == "wrong") report.resolved = kernel->resolved;
        return;
      }
      if (!fallback) {
        fallback = &c;
        fallback_message = message_of(c);
        fallback_reason = fill(c.reason, scope) + (c.logged ? " (the log says so)" : " (silently)");
      }
      name = c.to;
    }
    report.outcome = "unknown";
    report.reason = "the description's fallbacks go in a circle";
  }
};

}  // namespace

Report Doctor::evaluate(const Engine& engine, const ParsedCommand& command, const Scope& base) const {
  Evaluation e{engine, errors_, base, {}, {}, {}};
  for (const Phase& phase : engine.phases) {
    PhaseReport report;
    report.phase = phase.name;
    report.outcome = "runs";
    e.phases.push_back(report);
  }
  for (const OptionSpec& spec : engine.options)
    if (spec.kind != OptionSpec::Kind::kNegated || e.scope.get("opt." + spec.field).is_null())
      e.scope.set("opt." + spec.field, spec.kind == OptionSpec::Kind::kNegated ? Json(true) : spec.preset);
  for (const auto& variable : engine.environment) e.scope.set("env." + variable.field, variable.preset);
  for (const auto& [name, value] : command.environment) {
    for (const auto& variable : engine.environment) {
      if (variable.name != name) continue;
      Json typed = value;
      if (variable.kind == OptionSpec::Kind::kFlag)
        typed = value == "1" || value == "true" || value == "True" || value == "yes" || value == "TRUE" || value == "y";
      if (variable.kind == OptionSpec::Kind::kInt && !value.empty() && value.size() < 10 &&
          std::all_of(value.begin(), value.end(), ::isdigit))
        typed = std::stoll(value);
      e.scope.set("env." + variable.field, typed);
      e.scope.set("given_env." + variable.field, true);
    }
  }
  const Arguments arguments = read_arguments(engine, command);
  for (const auto& [field, value] : arguments.values) {
    e.scope.set("opt." + field, value);
    e.scope.set("given." + field, true);
  }
  if (!arguments.unknown.empty()) e.scope.set("has_unknown_options", true);
  for (const ArgumentError& error : arguments.errors) {
    PhaseReport report;
    report.phase = "launch";
    report.outcome = "refused";
    report.when = "launch";
    report.code = error.code;
    report.message = error.message;
    report.reason = error.reason;
    report.deciding = {"argument." + error.field};
    e.apply(report, engine.described);
  }

  for (const Step& step : engine.steps) {
    if (!step.when.truth(e.scope)) continue;
    for (const auto& [name, value] : step.set) e.scope.set(name, value.evaluate(e.scope));
    if (!step.note.empty()) e.notes.emplace_back(step.note_phase, fill(step.note, e.scope));
    if (step.has_error) e.apply(step.error, step.id, engine.described || step.ranged);
  }

  for (const Phase& phase : engine.phases) {
    PhaseReport& report = *e.row(phase.name);
    report.requested = phase.requested.evaluate(e.scope);
    if (phase.name == "launch") continue;
    if (!phase.when.truth(e.scope)) {
      report.outcome = "unused";
      report.when = report.code = report.message = "";
      report.resolved = nullptr;
      report.reason = fill(phase.unused_reason, e.scope);
      continue;
    }
    e.resolve(phase);
  }
  // What later phases found can decide the launch row as well: a server that dies after the weights does not serve.
  for (const auto& [phase, text] : e.notes) {
    PhaseReport* report = e.row(phase);
    if (report && report->outcome != "unused") report->reason += (report->reason.empty() ? "" : "; ") + text;
  }
  PhaseReport& launch = *e.row("launch");
  if (launch.outcome == "runs") {
    launch.reason = "the arguments are accepted" + (launch.reason.empty() ? "" : "; " + launch.reason);
    if (!engine.described) e.doubt(launch);
  }
  if (launch.outcome == "refused") {
    for (PhaseReport& phase : e.phases) {
      if (phase.phase == "launch" || phase.outcome == "refused" || phase.outcome == "wrong" ||
          phase.outcome == "unused")
        continue;
      phase.reason = "the server does not start; behind that, " + phase.outcome +
                     (phase.reason.empty() ? "" : ": " + phase.reason);
      phase.outcome = "unused";
      phase.when = phase.code = phase.message = "";
    }
  }

  Report report;
  report.phases = std::move(e.phases);
  bool fails = false, degraded = false, is_unknown = false;
  for (const PhaseReport& phase : report.phases) {
    fails = fails || phase.outcome == "refused" || phase.outcome == "wrong";
    degraded = degraded || phase.outcome == "falls_back";
    is_unknown = is_unknown || phase.outcome == "unknown";
  }
  report.verdict = fails ? "fails" : degraded ? "degraded" : is_unknown ? "unknown" : "runs";
  report.engine = {{"name", engine.name}, {"version", engine.version}, {"described", engine.described}};
  report.engine["unknown_options"] = arguments.unknown;
  report.engine["stray_words"] = arguments.strays;
  Json notes = Json::array();
  for (const auto& [phase, text] : e.notes)
    if (phase.empty()) notes.push_back(text);
  for (const std::string& text : e.later) notes.push_back("the next error would be: " + text);
  report.engine["notes"] = notes;
  report.engine["later_errors"] = e.later;
  Json resolved = Json::object();
  for (const auto& [name, value] : engine.resolved) resolved[name] = value.evaluate(e.scope);
  report.engine["resolved"] = resolved;
  report.scope = e.scope.take();
  return report;
}

}  // namespace kda::doctor
