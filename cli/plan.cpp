// kda plan: for a model and a machine, the kernel of each phase, the other candidates and why not, bytes and times.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/command.h"
#include "cli/context.h"
#include "doctor/doctor.h"

namespace kda::cli {
namespace {

using Ordered = nlohmann::ordered_json;
using doctor::Json;

struct Options {
  std::string model, model_config, gpu, state_dtype = "fp32", backend = "auto", numerics = "exact", kernels;
  int tensor_parallel = 1, rows = 1, prompt_tokens = 512, threads = 0;
  int topk = 0, steps = 0, draft_tokens = 0;
  double memory_gib = 0;
};

struct PlanDeleter {
  void operator()(kda_plan* plan) const { kda_plan_destroy(plan); }
};

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
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

// Microseconds a layer, from the bytes and the arithmetic that the phase cannot avoid.
double expected_us(const Json& model, const doctor::Gpu& gpu, bool on_gpu, double bytes, double units, double tokens,
                   double size, int threads) {
  if (on_gpu) {
    const double bandwidth = gpu.facts.value("bandwidth_gbs", 0.0) * model["gpu"].value("share_of_peak", 0.0);
    return bandwidth > 0 ? model["gpu"].value("launch_us", 0.0) + bytes / bandwidth / 1e3 : 0;
  }
  const double memory = bytes / model["cpu"].value("bandwidth_gbs", 1.0) / 1e3;
  const double arithmetic =
      units * tokens * model["cpu"].value("unit_us", 0.0) * size / (128.0 * 128.0) / std::max(1, threads);
  return std::max(memory, arithmetic);
}

// Prints the refusal of a plan; the code is the answer.
int refuse(const Call& call, const kda_error& error, kda_status status) {
  if (call.json) {
    print_json(Ordered{{"refused", kda_status_code(status)}, {"message", refusal(error, status)}});
    return kAnswerIsNo;
  }
  return call.fail(refusal(error, status), "kda explain " + std::string(kda_status_code(status)), kAnswerIsNo);
}

void print_table(const Ordered& out) {
  std::printf("%s: %d KDA layers, %d heads a rank of %d, gate %s, state %s\n\n",
              out["model"].get<std::string>().c_str(), out["layers"].get<int>(), out["heads"].get<int>(),
              out["head_dim"].get<int>(), out["gate"].get<std::string>().c_str(),
              out["state_dtype"].get<std::string>().c_str());
  for (const Ordered& phase : out["phases"]) {
    std::printf("%-15s %-28s %10.1f us a layer\n", phase["phase"].get<std::string>().c_str(),
                phase["kernel"].is_null() ? "-" : phase["kernel"].get<std::string>().c_str(),
                phase["expected_us_per_layer"].get<double>());
    for (const Ordered& candidate : phase["candidates"])
      if (!candidate["taken"].get<bool>())
        std::printf("    not %-26s %s%s%s\n", candidate["kernel"].get<std::string>().c_str(),
                    candidate["code"].is_null() ? "" : candidate["code"].get<std::string>().c_str(),
                    candidate["code"].is_null() ? "" : ": ", candidate["reason"].get<std::string>().c_str());
  }
  std::printf("\n");
  for (const auto& [name, bytes] : out["bytes"].items())
    std::printf("%-38s %16.0f\n", name.c_str(), bytes.get<double>());
  std::printf("%-38s %16.0f   (%s)\n", "sequences that fit", out["sequences"]["fit"].get<double>(),
              out["sequences"]["basis"].get<std::string>().c_str());
  std::printf("\ntimes rest on: %s\n", out["cost_model"].get<std::string>().c_str());
}

int run_plan(const Options& options, const Call& call) {
  const int backend = options.backend == "auto" ? KDA_BACKEND_AUTO : backend_from_name(options.backend);
  const int numerics = numerics_from_name(options.numerics);
  if (backend < 0) return call.fail("--backend " + options.backend + " is not known", "auto, reference, cpu or cuda");
  if (numerics < 0) return call.fail("--numerics " + options.numerics + " is not known", "exact or fast");
  if (options.state_dtype != "fp32" && options.state_dtype != "bf16") return call.fail("--state-dtype is fp32 or bf16");
  try {
    const doctor::Doctor lookup{doctor::Resources()};
    doctor::Scope scope;
    lookup.add_model_facts(lookup.find_config(options.model, options.model_config), scope);
    const doctor::Gpu gpu = lookup.find_gpu(options.gpu);
    const Json cost = lookup.resources().json("data/cost_model.json");
    const auto fact = [&](const char* name) { return scope.get(std::string("model.") + name); };
    const auto number = [&](const char* name, int64_t otherwise) {
      const Json value = fact(name);
      return value.is_number() ? value.get<int64_t>() : otherwise;
    };
    if (number("heads", 0) % options.tensor_parallel != 0)
      return call.fail(std::to_string(number("heads", 0)) + " heads do not divide over " +
                           std::to_string(options.tensor_parallel) + " ranks",
                       "a --tensor-parallel that divides the heads");

    const bool speculation = options.topk > 0 || options.steps > 0 || options.draft_tokens > 0;
    const int topk = std::max(1, options.topk), steps = std::max(1, options.steps);
    int nodes = 1;
    if (speculation)
      nodes = topk == 1 ? steps + 1 : (options.draft_tokens > 0 ? options.draft_tokens : topk * steps + 1);
    kda_problem problem = {};
    problem.struct_size = sizeof problem;
    problem.backend = backend;
    problem.layers = static_cast<int32_t>(std::max<int64_t>(1, number("kda_layers", 1)));
    problem.max_rows = options.rows;
    problem.max_tokens = std::max<int64_t>(options.prompt_tokens, static_cast<int64_t>(options.rows) * nodes);
    problem.max_nodes = nodes;
    problem.heads = static_cast<int32_t>(number("heads", 1) / options.tensor_parallel);
    problem.value_heads = static_cast<int32_t>(number("value_heads", 1) / options.tensor_parallel);
    problem.key_dim = static_cast<int32_t>(number("head_dim", 128));
    problem.value_dim = static_cast<int32_t>(number("value_head_dim", 128));
    problem.conv_width = static_cast<int32_t>(number("conv_width", 4));
    problem.state_dtype = options.state_dtype == "bf16" ? KDA_BF16 : KDA_FP32;
    problem.gate = fact("gate_lower_bound").is_number() ? KDA_GATE_BOUNDED : KDA_GATE_SOFTPLUS;
    problem.extend_numerics = numerics;
    problem.verify_numerics = numerics;
    problem.kernels = options.kernels.empty() ? nullptr : options.kernels.c_str();

    const io::Result<ContextPointer> context =
        open_context(options.threads, "", /*with_cuda=*/backend != KDA_BACKEND_CPU);
    if (!context) return call.fail(context.error());
    kda_error error = empty_error();
    kda_plan* raw = nullptr;
    const kda_status status = kda_plan_create(context->get(), &problem, &raw, &error);
    if (status != KDA_OK) return refuse(call, error, status);
    const std::unique_ptr<kda_plan, PlanDeleter> plan(raw);
    kda_plan_info info = {};
    info.struct_size = sizeof info;
    if (const kda_status got = kda_plan_get_info(plan.get(), &info); got != KDA_OK) return refuse(call, error, got);

    const bool on_gpu = info.backend == KDA_BACKEND_CUDA;
    const double layers = problem.layers, units = static_cast<double>(problem.value_heads) * options.rows;
    const double state = static_cast<double>(info.state_slot_bytes),
                 record = speculation ? static_cast<double>(info.record_row_bytes) : 0;
    const double size = static_cast<double>(problem.key_dim) * problem.value_dim;
    const double io = 2.0 * (2.0 * problem.heads * problem.key_dim +
                             problem.value_heads * (2.0 * problem.value_dim + problem.key_dim));
    Ordered phases = Ordered::array();
    for (const auto& [name, operation] : kPhases) {
      const bool drafts = operation != KDA_EXTEND && operation != KDA_DECODE;
      if (drafts && !speculation) continue;
      Ordered phase{{"phase", name}, {"kernel", nullptr}};
      Ordered candidates = Ordered::array();
      for (int32_t i = 0; i < kda_plan_candidate_count(plan.get(), operation); ++i) {
        kda_candidate candidate = {};
        candidate.struct_size = sizeof candidate;
        if (kda_plan_get_candidate(plan.get(), operation, i, &candidate) != KDA_OK) continue;
        if (candidate.taken) phase["kernel"] = candidate.kernel;
        candidates.push_back(
            {{"kernel", candidate.kernel},
             {"taken", candidate.taken != 0},
             {"code", candidate.status == KDA_OK ? Ordered() : Ordered(kda_status_code(candidate.status))},
             {"reason", candidate.reason ? candidate.reason : ""}});
      }
      const double tokens = operation == KDA_EXTEND   ? static_cast<double>(options.prompt_tokens) / options.rows
                            : operation == KDA_DECODE ? 1
                            : operation == KDA_COMMIT ? std::min(nodes, steps + 1)
                                                      : nodes;
      double bytes = options.rows * tokens * io;
      if (operation == KDA_VERIFY)
        bytes += options.rows * (state + record);
      else if (operation == KDA_VERIFY_PENDING)
        bytes += options.rows * 2 * (state + record);
      else if (operation == KDA_COMMIT)
        bytes = options.rows * (2 * state + record);
      else
        bytes += options.rows * 2 * state;
      phase["bytes_per_layer"] = bytes;
      phase["expected_us_per_layer"] =
          expected_us(cost, gpu, on_gpu, bytes, units, tokens, size,
                      options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency()));
      phase["candidates"] = std::move(candidates);
      phases.push_back(std::move(phase));
    }
    const double per_sequence = layers * (state + static_cast<double>(info.conv_slot_bytes) + record);
    double memory = options.memory_gib;
    std::string basis = "--memory-gib";
    if (memory <= 0) {
      const bool named = gpu.facts.contains("memory_gib");
      memory = named ? gpu.facts.value("memory_gib", 0.0) * 0.9 : available_memory_gib();
      basis = named ? "90 % of " + gpu.name + "'s memory, no weights in it; --memory-gib sets what is left"
                    : "memory available here";
    }
    Ordered out{{"model", options.model.empty() ? options.model_config : options.model},
                {"machine", gpu.name},
                {"backend", backend_name(info.backend)},
                {"layers", problem.layers},
                {"heads", problem.heads},
                {"head_dim", problem.key_dim},
                {"gate", problem.gate == KDA_GATE_BOUNDED ? "bounded" : "softplus"},
                {"state_dtype", options.state_dtype},
                {"draft_nodes", speculation ? nodes : 0},
                {"phases", std::move(phases)},
                {"bytes",
                 {{"state of a sequence", layers * state},
                  {"conv window of a sequence", layers * static_cast<double>(info.conv_slot_bytes)},
                  {"records of a sequence", layers * record},
                  {"a state per node instead", speculation ? layers * state * nodes : 0},
                  {"workspace of a call", static_cast<double>(info.workspace_bytes)},
                  {"a sequence, all together", per_sequence}}},
                {"sequences", {{"fit", std::max(0.0, std::floor(memory * kGib / per_sequence))}, {"basis", basis}}},
                {"cost_model", cost[on_gpu ? "gpu" : "cpu"].value("basis", "")}};
    if (call.json)
      print_json(out);
    else
      print_table(out);
    return kDone;
  } catch (const doctor::UsageError& error) {
    return call.fail(error.what());
  } catch (const doctor::DataError& error) {
    return call.fail(error.what());
  }
}

}  // namespace

Action add_plan(CLI::App& command) {
  auto options = std::make_shared<Options>();
  command.add_option("--model", options->model,
                     "Folder with config.json, or Kimi-Linear-48B-A3B, Kimi-K3, Ling-3.0-flash, GLM-5.3-Flash");
  command.add_option("--model-config", options->model_config, "config.json of the model");
  command.add_option("--gpu", options->gpu, "Machine whose memory and bandwidth count; default: the one here");
  command.add_option("--tensor-parallel", options->tensor_parallel, "Ranks that share the heads")
      ->check(CLI::Range(1, 1024));
  command.add_option("--state-dtype", options->state_dtype, "fp32 (default) or bf16");
  command.add_option("--batch", options->rows, "Sequences a call")->check(CLI::Range(1, 1 << 20));
  command.add_option("--prompt-tokens", options->prompt_tokens, "Tokens of one extend call")
      ->check(CLI::Range(1, 1 << 24));
  command.add_option("--speculative-num-steps", options->steps, "Depth of the draft")->check(CLI::Range(0, 64));
  command.add_option("--speculative-eagle-topk", options->topk, "Branches; 1 = a chain")->check(CLI::Range(0, 64));
  command.add_option("--speculative-num-draft-tokens", options->draft_tokens, "Nodes of the draft, root included")
      ->check(CLI::Range(0, 1024));
  command.add_option("--backend", options->backend, "auto, reference, cpu or cuda");
  command.add_option("--numerics", options->numerics, "exact (default) or fast, of extend and verify");
  command.add_option("--kernels", options->kernels, "Forced kernels, e.g. decode=NAME; what cannot run is refused");
  command.add_option("--memory-gib", options->memory_gib, "Memory for sequences, after the weights");
  add_threads_option(command, options->threads);
  return [options](const Call& call) { return run_plan(*options, call); };
}

}  // namespace kda::cli
