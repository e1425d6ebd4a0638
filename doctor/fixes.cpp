// The smallest changes after which the command runs. Every proposal has itself been through the doctor.
#include <algorithm>
#include <set>

#include "arguments.h"
#include "doctor.h"

namespace kda::doctor {

namespace {

constexpr size_t kMaxFixes = 5;
constexpr size_t kMaxEdits = 48;  // single edits considered
// The search's width and depth bound its time: some 400 commands checked at most.
constexpr size_t kBeam = 2;
constexpr size_t kMaxDepth = 5;

struct Change {
  std::vector<std::pair<std::string, std::string>> set;
  std::vector<std::string> unset;
  std::vector<std::pair<std::string, std::string>> environment;
  std::string why;
  double cost = 1;
  bool drop_strays = false;  // take the words out that belong to no option
};

// Applies a change to the words; returns the texts of what changed, empty if nothing did.
std::vector<std::string> apply(const Engine& engine, const Change& change, std::vector<std::string>& words) {
  std::vector<std::string> changes;
  const auto parse = [&] {
    ParsedCommand command;
    parse_command(engine, words, command);
    return command;
  };
  const auto same = [&](const OptionUse& use, const std::string& flag) {
    if (use.flag == flag) return true;
    if (use.spec < 0) return false;
    const auto& flags = engine.options[static_cast<size_t>(use.spec)].flags;
    return std::find(flags.begin(), flags.end(), flag) != flags.end();
  };
  const auto erase = [&](const OptionUse& use) {
    words.erase(words.begin() + static_cast<std::ptrdiff_t>(use.first),
                words.begin() + static_cast<std::ptrdiff_t>(use.last));
  };
  if (change.drop_strays) {
    const ParsedCommand command = parse();
    for (auto at = command.strays.rbegin(); at != command.strays.rend(); ++at) {
      changes.insert(changes.begin(), "- " + words[*at]);
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(*at));
    }
  }
  for (const std::string& flag : change.unset) {
    for (bool again = true; again;) {
      again = false;
      for (const OptionUse& use : parse().uses) {
        if (!same(use, flag)) continue;
        changes.push_back("- " + flag + (use.has_value() ? " " + use.value() : ""));
        erase(use);
        again = true;
        break;
      }
    }
  }
  for (const auto& [flag, value] : change.set) {
    std::string before;
    bool found = false, equal = false;
    ParsedCommand command = parse();
    for (auto use = command.uses.rbegin(); use != command.uses.rend(); ++use) {
      if (!same(*use, flag)) continue;
      if (!found) {
        found = true;
        before = use->value();
        equal = use->value() == value;
        if (equal) continue;
        const size_t first = use->first;
        erase(*use);
        std::vector<std::string> words_of = {flag};
        if (!value.empty()) words_of.push_back(value);
        words.insert(words.begin() + static_cast<std::ptrdiff_t>(first), words_of.begin(), words_of.end());
      } else if (!equal) {
        erase(*use);
      }
    }
    if (equal) continue;
    if (!found) {
      const size_t end = command.options_end;
      std::vector<std::string> added = {flag};
      if (!value.empty()) added.push_back(value);
      words.insert(words.begin() + static_cast<std::ptrdiff_t>(end), added.begin(), added.end());
      changes.push_back("+ " + join_words(added));
    } else {
      changes.push_back("~ " + flag + " " + before + " -> " + (value.empty() ? flag : value));
    }
  }
  for (const auto& [name, value] : change.environment) {
    const auto at = std::find_if(words.begin(), words.end(),
                                 [&, n = name](const std::string& word) { return word.rfind(n + "=", 0) == 0; });
    if (at == words.end()) continue;  // edits only correct what the user wrote
    if (*at == name + "=" + value) continue;
    changes.push_back("~ " + *at + " -> " + name + "=" + value);
    *at = name + "=" + value;
  }
  return changes;
}

Arity arity_of(const Engine& engine, const OptionUse& use) {
  const auto name = engine.option_index.exact.find(use.flag);
  return name == engine.option_index.exact.end() ? Arity::kOne : engine.option_index.names[name->second].arity;
}

}  // namespace

void Doctor::find_fixes(const Engine& engine, const ParsedCommand& command, const Scope& base, Report& report) const {
  Scope scope;
  for (const auto& [name, value] : report.scope.items()) scope.set(name, value);
  std::vector<Change> edits;
  // What the parser refuses: the nearest choice for a slip, a switch alone, words that belong to nothing left out.
  const Arguments arguments = read_arguments(engine, command);
  if (!arguments.strays.empty()) edits.push_back({{}, {}, {}, "the parser expects no words there", 0.6, true});
  for (const OptionUse& use : command.uses) {
    if (!use.known()) continue;
    const bool described = use.spec >= 0;
    const std::string field = described ? engine.options[static_cast<size_t>(use.spec)].field : use.flag;
    if (std::none_of(arguments.errors.begin(), arguments.errors.end(),
                     [&](const ArgumentError& error) { return error.field == field; }))
      continue;
    if (described) {
      const OptionSpec& spec = engine.options[static_cast<size_t>(use.spec)];
      const std::string near = spec.choices.empty() ? "" : nearest(use.value(), spec.choices);
      if (!near.empty())
        edits.push_back({{{use.flag, near}}, {}, {}, "\"" + use.value() + "\" looks like a slip of " + near, 0.5});
    }
    if (use.joined && arity_of(engine, use) == Arity::kNone)
      edits.push_back({{{use.flag, ""}}, {}, {}, "a switch takes no value", 0.5});
    if (field != engine.model_field) edits.push_back({{}, {use.flag}, {}, "leave the option to its default", 1.2});
  }
  for (const Edit& edit : engine.edits)
    if (edits.size() < kMaxEdits && edit.when.truth(scope))
      edits.push_back({edit.set, edit.unset, edit.environment, edit.why, edit.cost});

  // A command on the way to a fix: what was changed, and how much is still wrong with it.
  struct State {
    std::vector<size_t> chosen;
    Fix fix;
    int trouble = 0;
    double cost = 0;
  };
  const auto trouble_of = [](const Report& answer) {
    int trouble = 0;
    for (const PhaseReport& phase : answer.phases)
      trouble += phase.outcome == "refused" || phase.outcome == "wrong" ? 4
                 : phase.outcome == "falls_back"                        ? 2
                 : phase.outcome == "unknown"                           ? 1
                                                                        : 0;
    return trouble + 4 * static_cast<int>(answer.engine["later_errors"].size());
  };
  std::vector<State> found, beam(1);
  beam[0].fix.command = command.words;
  std::set<std::vector<std::string>> seen;
  // Depth by depth: all single changes, then further changes to the most promising commands, until something runs.
  for (size_t depth = 0; depth < kMaxDepth && !beam.empty(); ++depth) {
    std::vector<State> next;
    for (const State& state : beam) {
      for (size_t index = 0; index < edits.size(); ++index) {
        if (std::find(state.chosen.begin(), state.chosen.end(), index) != state.chosen.end()) continue;
        State candidate = state;
        const auto changes = apply(engine, edits[index], candidate.fix.command);
        if (changes.empty() || !seen.insert(candidate.fix.command).second) continue;
        candidate.chosen.push_back(index);
        candidate.fix.changes.insert(candidate.fix.changes.end(), changes.begin(), changes.end());
        candidate.fix.why += (candidate.fix.why.empty() ? "" : "; ") + fill(edits[index].why, scope);
        candidate.cost += 10 + edits[index].cost;
        ParsedCommand changed;
        if (!parse_command(engine, candidate.fix.command, changed)) continue;
        const Report answer = evaluate(engine, changed, base);
        candidate.fix.verdict = answer.verdict;
        candidate.trouble = trouble_of(answer);
        if (answer.verdict == "runs" || (answer.verdict == "degraded" && report.verdict == "fails"))
          found.push_back(candidate);
        next.push_back(std::move(candidate));
      }
    }
    if (std::any_of(found.begin(), found.end(), [](const State& f) { return f.fix.verdict == "runs"; })) break;
    std::stable_sort(next.begin(), next.end(), [](const State& a, const State& b) {
      return a.trouble != b.trouble ? a.trouble < b.trouble : a.cost < b.cost;
    });
    if (next.size() > kBeam) next.resize(kBeam);
    beam = std::move(next);
  }
  std::stable_sort(found.begin(), found.end(), [](const State& a, const State& b) {
    const bool a_runs = a.fix.verdict == "runs", b_runs = b.fix.verdict == "runs";
    return a_runs != b_runs ? a_runs : a.cost < b.cost;
  });
  for (const State& item : found) {
    if (report.fixes.size() >= kMaxFixes) break;
    if (item.fix.verdict != "runs" && found.front().fix.verdict == "runs") break;
    report.fixes.push_back(item.fix);
  }
}

}  // namespace kda::doctor
