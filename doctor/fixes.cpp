// The smallest changes after which the command runs. Every proposal has itself been through the doctor.
#include <algorithm>
#include <set>

#include "doctor.h"

namespace kda::doctor {

namespace {

constexpr size_t kMaxFixes = 5;
constexpr size_t kMaxEdits = 48;    // single edits considered
constexpr size_t kMaxChecked = 2500;  // commands checked, which bounds the time

struct Change {
  std::vector<std::pair<std::string, std::string>> set;
  std::vector<std::string> unset;
  std::vector<std::pair<std::string, std::string>> environment;
  std::string why;
  double cost = 1;
};

// Applies a change to the words; returns the texts of what changed, empty if nothing did.
std::vector<std::string> apply(const Engine& engine, const Change& change, std::vector<std::string>& words) {
  std::vector<std::string> changes;
  const auto parse = [&] {
    ParsedCommand command;
    find_launcher(words, engine.launchers, command);
    parse_options(engine.options, engine.other_options, command);
    return command;
  };
  const auto same = [&](const OptionUse& use, const std::string& flag) {
    if (use.flag == flag) return true;
    if (use.spec < 0) return false;
    const auto& flags = engine.options[static_cast<size_t>(use.spec)].flags;
    return std::find(flags.begin(), flags.end(), flag) != flags.end();
  };
  const auto erase = [&](const OptionUse& use) {
    words.erase(words.begin() + static_cast<std::ptrdiff_t>(use.first), words.begin() + static_cast<std::ptrdiff_t>(use.last));
  };
  for (const std::string& flag : change.unset) {
    for (bool again = true; again;) {
      again = false;
      for (const OptionUse& use : parse().uses) {
        if (!same(use, flag)) continue;
        changes.push_back("- " + flag + (use.has_value ? " " + use.value : ""));
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
        before = use->value;
        equal = use->value == value;
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
      // before a redirection or pipe, if the pasted line has one
      size_t end = command.options_begin;
      if (!command.uses.empty()) end = command.uses.back().last;
      end = std::max(end, std::min(words.size(), command.options_begin + command.positional.size()));
      std::vector<std::string> added = {flag};
      if (!value.empty()) added.push_back(value);
      words.insert(words.begin() + static_cast<std::ptrdiff_t>(end), added.begin(), added.end());
      changes.push_back("+ " + join_words(added));
    } else {
      changes.push_back("~ " + flag + " " + before + " -> " + value);
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

}  // namespace

void Doctor::find_fixes(const Engine& engine, const ParsedCommand& command, const Scope& base, Report& report) const {
  Scope scope;
  for (const auto& [name, value] : report.scope.items()) scope.set(name, value);
  std::vector<Change> edits;
  for (const OptionUse& use : command.uses) {  // a slip in a value: the nearest choice
    if (use.spec < 0) continue;
    const OptionSpec& spec = engine.options[static_cast<size_t>(use.spec)];
    if (spec.choices.empty() || !use.has_value ||
        std::find(spec.choices.begin(), spec.choices.end(), use.value) != spec.choices.end())
      continue;
    const std::string near = nearest(use.value, spec.choices);
    if (!near.empty()) edits.push_back({{{spec.flags.front(), near}}, {}, {}, "\"" + use.value + "\" looks like a slip of " + near, 0.5});
    edits.push_back({{}, {spec.flags.front()}, {}, "leave the option to its default", 1.2});
  }
  for (const Edit& edit : engine.edits)
    if (edits.size() < kMaxEdits && edit.when.truth(scope))
      edits.push_back({edit.set, edit.unset, edit.environment, edit.why, edit.cost});

  struct Found {
    Fix fix;
    double cost;
  };
  std::vector<Found> found;
  std::set<std::vector<std::string>> seen;
  size_t checked = 0;
  const auto try_edits = [&](const std::vector<size_t>& chosen) {
    std::vector<std::string> words = command.words, changes;
    std::string why;
    double cost = 0;
    for (const size_t index : chosen) {
      const auto more = apply(engine, edits[index], words);
      if (more.empty()) return;
      changes.insert(changes.end(), more.begin(), more.end());
      why += (why.empty() ? "" : "; ") + fill(edits[index].why, scope);
      cost += edits[index].cost;
    }
    if (!seen.insert(words).second || ++checked > kMaxChecked) return;
    ParsedCommand changed;
    if (find_launcher(words, engine.launchers, changed) < 0) return;
    parse_options(engine.options, engine.other_options, changed);
    const Report answer = evaluate(engine, changed, base);
    const bool better = answer.verdict == "runs" || (answer.verdict == "degraded" && report.verdict == "fails");
    if (!better) return;
    found.push_back({{words, changes, why, answer.verdict},
                     (answer.verdict == "runs" ? 0 : 100) + 10.0 * static_cast<double>(chosen.size()) + cost});
  };
  const auto any_runs = [&] {
    return std::any_of(found.begin(), found.end(), [](const Found& f) { return f.fix.verdict == "runs"; });
  };
  for (size_t a = 0; a < edits.size(); ++a) try_edits({a});
  if (!any_runs())
    for (size_t a = 0; a < edits.size(); ++a)
      for (size_t b = a + 1; b < edits.size(); ++b) try_edits({a, b});
  if (!any_runs())
    for (size_t a = 0; a < edits.size(); ++a)
      for (size_t b = a + 1; b < edits.size(); ++b)
        for (size_t c = b + 1; c < edits.size() && checked < kMaxChecked; ++c) try_edits({a, b, c});
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.cost < b.cost; });
  for (const Found& item : found) {
    if (report.fixes.size() >= kMaxFixes) break;
    if (item.fix.verdict != "runs" && any_runs()) continue;
    report.fixes.push_back(item.fix);
  }
}

}  // namespace kda::doctor
