// kda plan: for a model and a machine, the kernel of each phase, the other candidates and why not, bytes and times.
#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/command.h"
#include "cli/context.h"
#include "cli/plan/report.h"
#include "doctor/doctor.h"

namespace kda::cli {
namespace {

using plan::Options;

// A refusal is an answer: no. The library's message names the way out; kda explain has the rest.
int refuse(const Call& call, const kda_error& error, kda_status status) {
  const std::string code = kda_status_code(status);
  if (!call.json) return call.fail(refusal(error, status) + " More: kda explain " + code, {}, kAnswerIsNo);
  print_json({{"refused", code}, {"message", refusal(error, status)}});
  return kAnswerIsNo;
}

// The library would move the whole plan to where the forced kernels run; that is not the machine asked about.
kda_error forced_elsewhere(const Options& options, const doctor::Gpu& gpu) {
  kda_error error = empty_error();
  const std::string text = fmt::format(
      "{}: a forced kernel cannot serve the problem. Asked: --kernels {} with --gpu {}. Supported: kernels of backend "
      "cuda that run on it. Way out: leave out --kernels, or --backend cpu to plan for the CPU",
      kda_status_code(KDA_E_KERNEL_UNFIT), options.kernels, gpu.name);
  text.copy(error.message, sizeof error.message - 1);
  return error;
}

io::Result<ContextPointer> context_for(const Options& options, const plan::Question& question) {
  kda_context_options wanted = {};
  wanted.struct_size = sizeof wanted;
  wanted.threads = options.threads;
  const bool without_gpu = question.no_gpu || question.problem.backend == KDA_BACKEND_CPU;
  wanted.cuda_device = without_gpu ? -1 : 0;
  wanted.described_gpu = without_gpu ? 0 : question.described_gpu;
  return open_context(wanted);
}

int run_plan(const Options& options, const Call& call) {
  try {
    const doctor::Doctor lookup{doctor::Resources()};
    const doctor::Gpu gpu = lookup.find_gpu(options.gpu);
    const io::Result<plan::Question> question = plan::read_question(options, lookup, gpu);
    if (!question) return call.fail(question.error());
    const io::Result<ContextPointer> context = context_for(options, *question);
    if (!context) return call.fail(context.error());
    kda_error error = empty_error();
    kda_plan* raw = nullptr;
    const kda_status status = kda_plan_create(context->get(), &question->problem, &raw, &error);
    if (status != KDA_OK) return refuse(call, error, status);
    const PlanPointer made(raw);
    kda_plan_info info = {};
    info.struct_size = sizeof info;
    if (const kda_status got = kda_plan_get_info(raw, &info); got != KDA_OK) return refuse(call, error, got);

    const doctor::Json data = lookup.resources().json("data/cost_model.json");
    const int threads = options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency());
    const plan::CostModel cost(data, gpu, info.backend, threads);
    const nlohmann::ordered_json report = plan::report_json(options, *question, gpu, raw, info, cost);
    if (!options.gpu.empty() && plan::is_gpu(gpu) && info.backend != KDA_BACKEND_CUDA && options.backend == "auto" &&
        !options.kernels.empty()) {
      return refuse(call, forced_elsewhere(options, gpu), KDA_E_KERNEL_UNFIT);
    }
    call.json ? print_json(report) : plan::print_report(report);
    const nlohmann::ordered_json& fit = report["sequences"]["fit"];
    if (fit.is_null() || fit.get<double>() >= options.rows) return kDone;
    return call.fail(fmt::format("a batch of {} does not fit: {} of {} bytes do", options.rows, fit.get<double>(),
                                 report["bytes"]["a sequence, all together"].get<double>()),
                     "a smaller --batch, --state-dtype bf16, more --tensor-parallel ranks, or more --memory-gib",
                     kAnswerIsNo);
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
  command.add_option(
      "--gpu", options->gpu,
      "GPU to plan for: h200, a100, b200, ..., sm_90, or cpu; it need not be here. Default: this machine");
  command
      .add_option("--tensor-parallel,--tensor-parallel-size,--tp-size,--tp", options->tensor_parallel,
                  "Ranks that share the heads")
      ->check(number_between(1, 1024));
  command.add_option("--state-dtype", options->state_dtype, "fp32 (default) or bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  command.add_option("--batch", options->rows, "Sequences a call")->check(number_between(1, 1 << 20));
  command.add_option("--prompt-tokens", options->prompt_tokens, "Tokens of one extend call, over all its sequences")
      ->check(number_between(1, 1 << 24));
  command.add_option("--speculative-num-steps", options->steps, "Depth of the draft")->check(number_between(0, 64));
  command.add_option("--speculative-eagle-topk", options->topk, "Branches; 1 = a chain")->check(number_between(0, 64));
  command.add_option("--speculative-num-draft-tokens", options->draft_tokens, "Nodes of the draft, root included")
      ->check(number_between(0, 1024));
  command.add_option("--backend", options->backend, "auto (default), reference, cpu or cuda")
      ->check(CLI::IsMember({"auto", "reference", "cpu", "cuda"}));
  command.add_option("--numerics", options->numerics, "exact (default) or fast, of extend and verify")
      ->check(CLI::IsMember({"exact", "fast"}));
  command.add_option("--kernels", options->kernels, "Forced kernels, e.g. decode=NAME; what cannot run is refused");
  command.add_option("--memory-gib", options->memory_gib, "Memory for sequences, after the weights")
      ->check(number_between(1e-6, 1e9));
  add_threads_option(command, options->threads);
  return [options](const Call& call) { return run_plan(*options, call); };
}

}  // namespace kda::cli
