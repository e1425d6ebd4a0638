// kda bench: checks the answer of each kernel, then times it, next to what the machine can do at best.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/bench/machine.h"
#include "cli/bench/workload.h"
#include "cli/command.h"
#include "cli/context.h"

namespace kda::cli {
namespace {

using bench::Machine;
using bench::Spec;
using bench::Workload;
using Json = nlohmann::ordered_json;

struct Options {
  int threads = 1;
  std::string target, filter, compare;
  int dim = 128;
  double seconds = 0.4;
  int64_t cold_megabytes = 512;
};

std::vector<Spec> cases(int dim) {
  // In cache: 8 heads of 64 KiB fit a level 2 cache. Cold: 32 heads a call, rotating.
  std::vector<Spec> list;
  const auto add = [&](const char* name, kda_operation op, int rows, int tokens, int heads, kda_dtype state, bool tree,
                       bool cold, int layers = 1, kda_numerics numerics = KDA_EXACT) {
    list.push_back({name, op, rows, tokens, heads, dim, state, numerics, tree, cold, layers});
  };
  add("decode.cold", KDA_DECODE, 4, 1, 32, KDA_FP32, false, true);
  add("decode.cold.bf16", KDA_DECODE, 4, 1, 32, KDA_BF16, false, true);
  add("decode.cached", KDA_DECODE, 1, 1, 8, KDA_FP32, false, false);
  add("decode.cached.bf16", KDA_DECODE, 1, 1, 8, KDA_BF16, false, false);
  add("extend", KDA_EXTEND, 1, 256, 8, KDA_FP32, false, false);
  add("extend.bf16", KDA_EXTEND, 1, 256, 8, KDA_BF16, false, false);
  add("extend.fast", KDA_EXTEND, 1, 256, 8, KDA_FP32, false, false, 1, KDA_FAST);
  add("extend.fast.bf16", KDA_EXTEND, 1, 256, 8, KDA_BF16, false, false, 1, KDA_FAST);
  add("verify.chain8.cold", KDA_VERIFY, 4, 8, 32, KDA_FP32, false, true);
  add("verify.tree16.cold", KDA_VERIFY, 4, 16, 32, KDA_FP32, true, true);
  add("verify.tree16.cached", KDA_VERIFY, 1, 16, 8, KDA_FP32, true, false);
  add("verify.tree16.cached.fast", KDA_VERIFY, 1, 16, 8, KDA_FP32, true, false, 1, KDA_FAST);
  add("verify.tree16.cached.bf16", KDA_VERIFY, 1, 16, 8, KDA_BF16, true, false);
  add("commit4.cold", KDA_COMMIT, 4, 4, 32, KDA_FP32, false, true);
  add("commit4.cold.layers4", KDA_COMMIT, 1, 4, 32, KDA_FP32, false, true, 4);
  add("conv_decode.cold", KDA_CONV_DECODE, 16, 1, 32, KDA_FP32, false, true);
  add("conv_extend", KDA_CONV_EXTEND, 1, 256, 8, KDA_FP32, false, false);
  return list;
}

double relative_error(const std::vector<double>& x, const std::vector<double>& y) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norm += y[i] * y[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-300));
}

// Vector multiply-adds that a token and head needs: decay, prediction, update, output over K*V elements.
double vector_operations(const Spec& s, int lanes) { return 4.0 * s.dim * s.dim / lanes; }

struct Timing {
  double median, low, high;  // seconds a call; 10 % and 90 % of calls
  int calls;
};

Timing time_calls(Workload& work, double seconds) {
  using Clock = std::chrono::steady_clock;
  for (int64_t i = 0; i < std::min<int64_t>(work.sets(), 3); ++i) work.run(i);
  std::vector<double> times;
  const auto begin = Clock::now();
  for (int64_t i = 0; times.size() < 10 || std::chrono::duration<double>(Clock::now() - begin).count() < seconds; ++i) {
    const auto start = Clock::now();
    work.run(i % work.sets());
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  const auto at = [&](double q) { return times[static_cast<size_t>(q * (times.size() - 1))]; };
  return {at(0.5), at(0.1), at(0.9), static_cast<int>(times.size())};
}

// Empty if the answer is right, else why not.
std::string check(const Context& context, const Spec& spec) {
  Spec exact = spec;  // the reference has no other numerics
  exact.numerics = KDA_EXACT;
  Workload cpu(context, spec, KDA_BACKEND_CPU, 1), reference(context, exact, KDA_BACKEND_REFERENCE, 1);
  cpu.run(0);
  reference.run(0);
  const double out = relative_error(cpu.outputs(), reference.outputs());
  const double state = relative_error(cpu.states(), reference.states());
  const double out_limit = spec.numerics == KDA_FAST ? 5e-3 : 2.5e-3;  // bf16 outputs
  const double state_limit = spec.numerics == KDA_FAST ? 4e-3 : spec.state == KDA_BF16 && !spec.conv() ? 1e-3 : 1e-5;
  if (out <= out_limit && state <= state_limit) return {};
  return fmt::format("{}: wrong answer: out differs by {:.1e} (limit {:.1e}), state by {:.1e} (limit {:.1e})",
                     spec.name, out, out_limit, state, state_limit);
}

Json run_case(const Context& context, const Spec& spec, const Machine& machine, const Options& options) {
  const int64_t cold = options.cold_megabytes << 20;
  Workload work(context, spec, KDA_BACKEND_CPU, 1);
  if (spec.cold) {
    const int64_t sets = std::max<int64_t>(2, cold / work.set_bytes());
    work = Workload(context, spec, KDA_BACKEND_CPU, sets);
  }
  const Timing t = time_calls(work, options.seconds);
  const double per_unit = t.median / static_cast<double>(spec.units()), per_token = per_unit / spec.tokens;
  Json row = {{"name", spec.name},           {"calls", t.calls},
              {"call_us", t.median * 1e6},   {"call_us_p10", t.low * 1e6},
              {"call_us_p90", t.high * 1e6}, {"unit_us", per_unit * 1e6},
              {"token_us", per_token * 1e6}};
  if (!spec.conv() && spec.operation != KDA_COMMIT) {
    row["fma_share"] = vector_operations(spec, machine.lanes) / machine.fma_per_second / per_token;
  }
  const bool cached_decode = !spec.cold && !spec.conv() && spec.operation == KDA_DECODE;
  if (spec.cold || cached_decode) {
    const double rate = spec.cold ? machine.in_place_bytes : machine.cached_bytes;
    row["copy_share"] = static_cast<double>(work.set_bytes()) / rate / t.median;
  }
  return row;
}

void print_table(const Json& result, const Json* before) {
  const Json& m = result["machine"];
  fmt::print(
      "{} thread(s), {}: {:.2f}e9 vector multiply-adds a second, in-place pass {:.2f} us per 64 KiB, {:.2f} in "
      "cache\n",
      m["threads"].get<int>(), m["target"].get<std::string>(), m["fma_per_second"].get<double>() / 1e9,
      65536 / m["in_place_bytes_per_second"].get<double>() * 1e6,
      65536 / m["cached_bytes_per_second"].get<double>() * 1e6);
  fmt::print("{:<28}{:>10}{:>18}{:>12}{:>12}{:>8}{:>8}{:>9}\n", "case", "call us", "p10..p90", "us/state", "us/token",
             "fma %", "copy %", before ? "vs old" : "");
  for (const Json& row : result["cases"]) {
    const std::string name = row["name"];
    if (row.contains("error")) {
      fmt::print("{:<28}{}\n", name, row["error"].get<std::string>());
      continue;
    }
    const auto percent = [&](const char* key) {
      return row.contains(key) ? fmt::format("{:.0f}", 100 * row[key].get<double>()) : std::string("-");
    };
    std::string change;
    for (const Json& old : before ? (*before)["cases"] : Json::array()) {
      if (old.value("name", "") == name && old.contains("call_us")) {
        change = fmt::format("{:.2f}x", old["call_us"].get<double>() / row["call_us"].get<double>());
      }
    }
    fmt::print("{:<28}{:>10.1f}{:>18}{:>12.3f}{:>12.3f}{:>8}{:>8}{:>9}\n", name, row["call_us"].get<double>(),
               fmt::format("{:.1f}..{:.1f}", row["call_us_p10"].get<double>(), row["call_us_p90"].get<double>()),
               row["unit_us"].get<double>(), row["token_us"].get<double>(), percent("fma_share"), percent("copy_share"),
               change);
  }
}

int run_bench(const Options& options, const Call& call) {
  Json before;
  if (!options.compare.empty()) {
    std::ifstream file(options.compare);
    before = Json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (!before.is_object() || !before.contains("cases") || !before["cases"].is_array()) {
      return call.fail(options.compare + " is not the JSON of an earlier kda bench", "kda bench --json > FILE");
    }
  }
  const std::vector<Spec> all = cases(options.dim);
  const auto wanted = [&](const Spec& spec) { return spec.name.find(options.filter) != std::string::npos; };
  if (std::none_of(all.begin(), all.end(), wanted)) {
    std::string names;
    for (const Spec& spec : all) names += (names.empty() ? "" : ", ") + spec.name;
    return call.fail("--filter '" + options.filter + "' is in no case's name", "one of " + names);
  }
  if (has_gpu()) call.note("timing the cpu backend; kda_cuda_bench times the GPU's kernels (docs/gpu.md)");
  try {
    kda_context_options context_options = args<kda_context_options>();
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    context_options.threads = options.threads == 0 ? cores : options.threads;
    context_options.cpu_target = options.target.empty() ? nullptr : options.target.c_str();
    context_options.cuda_device = -1;
    const Context context(&context_options);
    const Machine machine = bench::measure_machine(context_options.threads, options.cold_megabytes << 20);
    Json result = {{"library", kda_version()},
                   {"machine",
                    {{"threads", context_options.threads},
                     {"target", machine.target},
                     {"lanes", machine.lanes},
                     {"fma_per_second", machine.fma_per_second},
                     {"in_place_bytes_per_second", machine.in_place_bytes},
                     {"cold_bytes", machine.cold_bytes},
                     {"cached_bytes_per_second", machine.cached_bytes}}},
                   {"dim", options.dim},
                   {"cases", Json::array()}};
    int exit_code = kDone;
    for (const Spec& spec : all) {
      if (!wanted(spec)) continue;
      call.note(spec.name);
      const std::string wrong = check(context, spec);
      if (wrong.empty()) {
        result["cases"].push_back(run_case(context, spec, machine, options));
      } else {
        result["cases"].push_back({{"name", spec.name}, {"error", wrong}});
        exit_code = kAnswerIsNo;
      }
    }
    if (call.json) {
      print_json(result);
    } else {
      print_table(result, before.is_object() ? &before : nullptr);
    }
    return exit_code;
  } catch (const kda::Error& error) {
    return call.fail(error.what());
  }
}

}  // namespace

Action add_bench(CLI::App& command) {
  auto options = std::make_shared<Options>();
  constexpr int kMaxThreads = 1024, kMaxDim = 256, kMaxMegabytes = 1 << 16;
  command.add_option("--threads", options->threads, "Threads, 0 = one per core; default 1")
      ->check(number_between(0, kMaxThreads))
      ->option_text("N");
  command.add_option("--target", options->target, "SIMD target (see kda info); default: the best")->option_text("NAME");
  command.add_option("--filter", options->filter, "Only cases whose name contains TEXT")->option_text("TEXT");
  command.add_option("--dim", options->dim, "Head size K = V; default 128")
      ->check(number_between(1, kMaxDim))
      ->option_text("D");
  command.add_option("--seconds", options->seconds, "Least seconds a case; default 0.4")
      ->check(number_between(0.0, 3600.0))
      ->option_text("S");
  command.add_option("--cold-mb", options->cold_megabytes, "Memory that cold cases rotate through; default 512")
      ->check(number_between(1, kMaxMegabytes))
      ->option_text("MB");
  command.add_option("--compare", options->compare, "Show the speed against the JSON of an earlier run")
      ->option_text("FILE");
  return [options](const Call& call) { return run_bench(*options, call); };
}

}  // namespace kda::cli
