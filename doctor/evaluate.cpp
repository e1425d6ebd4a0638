// Walks an engine's resolution steps and its kernels' needs for one command.
#include <algorithm>
#include <cctype>

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

// The value of an option as its type says; sets `complaint` if it cannot be.
Json option_value(const OptionSpec& spec, const OptionUse& use, bool& good) {
  using Kind = OptionSpec::Kind;
  good = true;
  if (spec.kind == Kind::kFlag) return true;
  if (spec.kind == Kind::kNegated) return false;
  if (!use.has_value) {
    good = false;
    return nullptr;
  }
  if (spec.kind == Kind::kInt || spec.kind == Kind::kFloat) {
    size_t used = 0;
    try {
      if (spec.kind == Kind::kInt) {
        const long long n = std::stoll(use.value, &used);
        if (used == use.value.size()) return n;
      } else {
        const double x = std::stod(use.value, &used);
        if (used == use.value.size()) return x;
      }
    } catch (const std::exception&) {  // not a number, or out of range
    }
    good = false;
    return nullptr;
  }
  if (spec.kind == Kind::kJson) {
    Json value = Json::parse(use.value, nullptr, false);
    if (value.is_discarded()) {
      good = false;
      return nullptr;
    }
    return value;
  }
  return use.value;
}

std::string quoted_list(const std::vector<std::string>& items) {
  std::string out;
  for (const std::string& item : items) out += (out.empty() ? "'" : ", '") + item + "'";
  return out;
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
    return record == errors.end() ? std::string()
                                  : fill(record->value("message", record->value("message_pattern", "")), scope);
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
    if (!sure) doubt(report);
    // Errors that stop the launch concern the whole launch too: its row shows the first of them.
    PhaseReport* launch = row("launch");
    const bool stops = c.outcome == "refused" && (c.when == "launch" || c.phase == "launch");
    if (stops) {
      if (launch->outcome == "refused") {
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
    report.reason = "version " + engine.version + " is not described exactly; as described for " + engine.newest +
                    ": " + report.outcome + (report.reason.empty() ? "" : ", " + report.reason) +
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
        report.reason = "the description has no kernel " + name + " for this phase";
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
  std::vector<std::string> unknown;

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
  for (const OptionUse& use : command.uses) {
    if (use.spec == -2) continue;
    if (use.spec < 0) {
      std::vector<std::string> names;
      for (const OptionSpec& spec : engine.options) names.insert(names.end(), spec.flags.begin(), spec.flags.end());
      for (const auto& other : engine.other_options) names.insert(names.end(), other.begin() + 1, other.end());
      const std::string near = nearest(use.flag, names);
      unknown.push_back(use.flag + (near.empty() ? "" : " (did you mean " + near + "?)"));
      e.scope.set("has_unknown_options", true);
      continue;
    }
    const OptionSpec& spec = engine.options[static_cast<size_t>(use.spec)];
    bool good = false;
    Json value = use.subkey.empty() ? option_value(spec, use, good) : Json();
    good = good || (!use.subkey.empty() && use.has_value);
    e.scope.set("arg.flag", spec.flags.front());
    e.scope.set(
        "arg.flags", join_words(spec.flags).find(' ') == std::string::npos ? spec.flags.front() : [&] {
          std::string all;
          for (const std::string& flag : spec.flags) all += (all.empty() ? "" : "/") + flag;
          return all;
        }());
    e.scope.set("arg.value", use.value);
    e.scope.set("arg.choices", quoted_list(spec.choices));
    if (!good) {
      Consequence c;
      c.phase = "launch";
      c.outcome = "refused";
      c.when = "launch";
      c.message = engine.value_text;
      c.reason = use.has_value ? "the option takes another kind of value" : "the option needs a value";
      e.apply(c, "option." + spec.field, engine.described);
      continue;
    }
    if (!spec.choices.empty() && value.is_string() &&
        std::find(spec.choices.begin(), spec.choices.end(), value.get<std::string>()) == spec.choices.end()) {
      Consequence c;
      c.phase = "launch";
      c.outcome = "refused";
      c.when = "launch";
      c.code = engine.choice_code;
      c.message = engine.choice_text;
      const std::string near = nearest(value.get<std::string>(), spec.choices);
      c.reason = "\"" + value.get<std::string>() + "\" is not one of the values of " + spec.flags.front() +
                 (near.empty() ? "" : ": did you mean " + near + "?");
      e.apply(c, "option." + spec.field, engine.described);
      e.scope.set("bad_choice", true);
      continue;
    }
    std::string name = "opt." + spec.field;
    if (!use.subkey.empty()) {  // --config.key VALUE: one key of a JSON option
      Json whole = e.scope.get(name).is_object() ? e.scope.get(name) : Json::object();
      Json part = Json::parse(use.value, nullptr, false);
      whole[use.subkey] = part.is_discarded() ? Json(use.value) : part;
      value = whole;
    }
    e.scope.set(name, value);
    e.scope.set("given." + spec.field, true);
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
  PhaseReport* launch = e.row("launch");
  if (launch && launch->outcome == "runs" && launch->reason.empty()) launch->reason = "the arguments are accepted";

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
  report.engine["unknown_options"] = unknown;
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
