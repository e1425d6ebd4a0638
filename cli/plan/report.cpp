#include "cli/plan/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "cli/context.h"

namespace kda::cli::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
// Of a named GPU's memory; the rest goes to the driver, the allocator and the graphs. An assumption, said in the
// answer.
constexpr double kUsableShare = 0.9;
constexpr std::pair<const char*, int> kPhases[] = {{"extend", KDA_EXTEND},
                                                   {"decode", KDA_DECODE},
                                                   {"verify", KDA_VERIFY},
                                                   {"verify_pending", KDA_VERIFY_PENDING},
                                                   {"commit", KDA_COMMIT}};

double available_memory_gib() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  for (double kib; file >> key >> kib >> unit;)
    if (key == "MemAvailable:") return kib / (1024.0 * 1024.0);
  return 0;
}

Json candidates_of(const kda_plan* plan, int operation, std::string* taken) {
  Json candidates = Json::array();
  for (int32_t i = 0; i < kda_plan_candidate_count(plan, operation); ++i) {
    kda_candidate candidate = {};
    candidate.struct_size = sizeof candidate;
    if (kda_plan_get_candidate(plan, operation, i, &candidate) != KDA_OK) continue;
    if (candidate.taken != 0) *taken = candidate.kernel;
    candidates.push_back({{"kernel", candidate.kernel},
                          {"taken", candidate.taken != 0},
                          {"code", candidate.status == KDA_OK ? Json() : Json(kda_status_code(candidate.status))},
                          {"reason", candidate.reason != nullptr ? candidate.reason : ""}});
  }
  return candidates;
}

Json phases_of(const Options& options, const Question& question, const kda_plan* plan, const kda_plan_info& info,
               const CostModel& cost) {
  const kda_problem& p = question.problem;
  Json phases = Json::array();
  for (const auto& [name, operation] : kPhases) {
    const bool drafts = operation != KDA_EXTEND && operation != KDA_DECODE;
    if (drafts && !question.speculation) continue;
    const Shape shape{.rows = static_cast<double>(options.rows),
                      .tokens_per_row = operation == KDA_EXTEND   ? question.prompt_tokens_per_row
                                        : operation == KDA_DECODE ? 1.0
                                        : operation == KDA_COMMIT ? question.path
                                                                  : question.nodes,
                      .heads = static_cast<double>(p.heads),
                      .value_heads = static_cast<double>(p.value_heads),
                      .key_dim = static_cast<double>(p.key_dim),
                      .value_dim = static_cast<double>(p.value_dim),
                      .state_bytes = static_cast<double>(info.state_slot_bytes),
                      .record_bytes = static_cast<double>(info.record_row_bytes)};
    std::string taken;
    Json candidates = candidates_of(plan, operation, &taken);
    const double us = cost.expected_us(operation, p.verify_numerics, shape);
    phases.push_back({{"phase", name},
                      {"kernel", taken},
                      {"bytes_per_layer", phase_bytes(operation, shape)},
                      {"expected_us_per_layer", us > 0 ? Json(us) : Json()},
                      {"candidates", std::move(candidates)}});
  }
  return phases;
}

Json sequences_that_fit(const Options& options, const doctor::Gpu& gpu, bool on_gpu, double bytes_of_one) {
  double memory = 0;
  std::string basis;
  if (options.memory_gib) {
    memory = *options.memory_gib;
    basis = "--memory-gib";
  } else if (!on_gpu) {
    memory = available_memory_gib();
    basis = "host memory available here; --memory-gib answers for another host";
  } else if (gpu.facts.contains("memory_gib")) {
    memory = gpu.facts.value("memory_gib", 0.0) * kUsableShare;
    basis = "90 % of " + gpu.name + "'s memory, no weights in it; --memory-gib sets what is left";
  } else {
    return {{"fit", Json()}, {"basis", "the memory of " + gpu.name + " is not known; --memory-gib says it"}};
  }
  return {{"fit", std::floor(memory * kGib / bytes_of_one)}, {"basis", basis}};
}

// Why a plan asked about a GPU is one for the CPU.
std::string why_not_on_gpu(const Options& options, const Question& question, const doctor::Gpu& gpu,
                           const kda_plan* plan) {
  if (options.backend != "auto") return "--backend " + options.backend;
  if (!options.kernels.empty()) return "the forced kernels run there";
  if (question.no_gpu) return "libkda has no kernels for " + gpu.name;
  for (const int operation : {KDA_EXTEND, KDA_DECODE, KDA_VERIFY, KDA_VERIFY_PENDING, KDA_COMMIT}) {
    std::string first_reason;
    bool served = false;
    for (int32_t i = 0; i < kda_plan_candidate_count(plan, operation); ++i) {
      kda_candidate candidate = {};
      candidate.struct_size = sizeof candidate;
      if (kda_plan_get_candidate(plan, operation, i, &candidate) != KDA_OK) continue;
      if (std::string_view(candidate.kernel).rfind("cuda_", 0) != 0) continue;
      served = served || candidate.status == KDA_OK;
      // The later candidates are the more general ones.
      if (candidate.status != KDA_OK) first_reason = std::string(candidate.kernel) + ": " + candidate.reason;
    }
    if (!served && !first_reason.empty()) return first_reason;
  }
  return "its kernels do not serve this problem";
}

}  // namespace

bool is_gpu(const doctor::Gpu& machine) { return machine.facts.value("vendor", "") != "cpu"; }

Json report_json(const Options& options, const Question& question, const doctor::Gpu& gpu, const kda_plan* plan,
                 const kda_plan_info& info, const CostModel& cost) {
  const kda_problem& p = question.problem;
  const double layers = p.layers, state = static_cast<double>(info.state_slot_bytes),
               window = static_cast<double>(info.conv_slot_bytes),
               record = question.speculation ? static_cast<double>(info.record_row_bytes) : 0;
  const double sequence = layers * (state + window + record);
  const bool on_gpu = info.backend == KDA_BACKEND_CUDA;
  Json notes = Json::array();
  if (!question.note.empty()) notes.push_back(question.note);
  if (!on_gpu && is_gpu(gpu)) {
    notes.push_back("a plan for the CPU and host memory, not for " + gpu.name + ": " +
                    why_not_on_gpu(options, question, gpu, plan));
  }
  return {{"model", options.model.empty() ? options.model_config : options.model},
          {"machine", on_gpu ? gpu.name : "cpu"},
          {"described", on_gpu && question.described_gpu != 0},
          {"notes", notes},
          {"backend", backend_name(info.backend)},
          {"layers", p.layers},
          {"heads", p.heads},
          {"value_heads", p.value_heads},
          {"head_dim", p.key_dim},
          {"gate", p.gate == KDA_GATE_BOUNDED ? "bounded" : "softplus"},
          {"state_dtype", options.state_dtype},
          {"numerics", options.numerics},
          {"draft_nodes", question.speculation ? question.nodes : 0},
          {"draft_rule", question.draft},
          {"phases", phases_of(options, question, plan, info, cost)},
          {"bytes",
           {{"state of a sequence", layers * state},
            {"conv window of a sequence", layers * window},
            {"records of a sequence", layers * record},
            {"a state per node instead", question.speculation ? layers * state * question.nodes : 0},
            {"workspace of a call", static_cast<double>(info.workspace_bytes)},
            {"a sequence, all together", sequence}}},
          {"sequences", sequences_that_fit(options, gpu, on_gpu, sequence)},
          {"cost_model", cost.basis()}};
}

void print_report(const Json& report) {
  const auto text = [](const Json& value) { return value.is_string() ? value.get<std::string>() : std::string("-"); };
  std::printf("%s on %s%s: %d KDA layers, %d heads a rank of %d, gate %s, state %s, %s\n",
              text(report["model"]).c_str(), text(report["machine"]).c_str(),
              report["described"].get<bool>() ? " (described, not this machine)" : "", report["layers"].get<int>(),
              report["value_heads"].get<int>(), report["head_dim"].get<int>(), text(report["gate"]).c_str(),
              text(report["state_dtype"]).c_str(), text(report["numerics"]).c_str());
  for (const Json& note : report["notes"]) std::printf("%s\n", text(note).c_str());
  if (const int nodes = report["draft_nodes"].get<int>(); nodes > 0)
    std::printf("draft of %d node%s (%s)\n", nodes, nodes == 1 ? "" : "s", text(report["draft_rule"]).c_str());
  std::printf("\n");
  for (const Json& phase : report["phases"]) {
    std::printf("%-15s %-28s ", text(phase["phase"]).c_str(), text(phase["kernel"]).c_str());
    const Json& us = phase["expected_us_per_layer"];
    us.is_null() ? std::printf("%10s\n", "-") : std::printf("%10.1f us a layer\n", us.get<double>());
    for (const Json& candidate : phase["candidates"]) {
      if (candidate["taken"].get<bool>()) continue;
      const std::string code = candidate["code"].is_null() ? "" : candidate["code"].get<std::string>() + ": ";
      std::printf("    not %-26s %s%s\n", text(candidate["kernel"]).c_str(), code.c_str(),
                  text(candidate["reason"]).c_str());
    }
  }
  std::printf("\n");
  for (const auto& [name, bytes] : report["bytes"].items()) {
    std::printf("%-38s %16.0f\n", name.c_str(), bytes.get<double>());
  }
  const Json& fit = report["sequences"]["fit"];
  std::printf("%-38s %16s   (%s)\n", "sequences that fit",
              fit.is_null() ? "-" : std::to_string(static_cast<long long>(fit.get<double>())).c_str(),
              text(report["sequences"]["basis"]).c_str());
  std::printf("\ntimes rest on: %s\n", text(report["cost_model"]).c_str());
}

}  // namespace kda::cli::plan
