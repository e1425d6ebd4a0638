#include "cli/context.h"

namespace kda::cli {

kda_error empty_error() {
  kda_error error = {};
  error.struct_size = sizeof error;
  return error;
}

std::string refusal(const kda_error& error, kda_status status) {
  if (error.message[0] != '\0') return error.message;
  return std::string(kda_status_code(status)) + ": " + kda_status_message(status);
}

io::Result<ContextPointer> open_context(int threads, const std::string& target, bool with_cuda) {
  kda_context_options options = {};
  options.struct_size = sizeof options;
  options.threads = threads;
  options.cpu_target = target.empty() ? nullptr : target.c_str();
  options.cuda_device = with_cuda ? 0 : -1;
  return open_context(options);
}

io::Result<ContextPointer> open_context(const kda_context_options& options) {
  kda_context* context = nullptr;
  kda_error error = empty_error();
  const kda_status status = kda_context_create(&options, &context, &error);
  if (status != KDA_OK) return io::Error{refusal(error, status)};
  return ContextPointer(context);
}

io::Result<nlohmann::ordered_json> describe_context(const kda_context* context) {
  size_t needed = 0;
  kda_status status = kda_context_describe(context, nullptr, 0, &needed);
  std::string text(needed, '\0');
  if (needed > 0) status = kda_context_describe(context, text.data(), text.size(), &needed);
  if (status != KDA_OK) return io::Error{refusal(empty_error(), status)};
  text.resize(needed > 0 ? needed - 1 : 0);
  auto machine = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!machine.is_object()) return io::Error{"the library's description of the machine is no JSON object"};
  return machine;
}

bool has_gpu() {
  const io::Result<ContextPointer> context = open_context(1, "", /*with_cuda=*/true);
  if (!context) return false;
  const io::Result<nlohmann::ordered_json> machine = describe_context(context->get());
  return machine && machine->value("gpu", 0) != 0;
}

int backend_from_name(const std::string& name) {
  for (const int backend : {KDA_BACKEND_REFERENCE, KDA_BACKEND_CPU, KDA_BACKEND_CUDA}) {
    if (name == backend_name(backend)) return backend;
  }
  return -1;
}

const char* backend_name(int backend) {
  switch (backend) {
    case KDA_BACKEND_REFERENCE:
      return "reference";
    case KDA_BACKEND_CPU:
      return "cpu";
    case KDA_BACKEND_CUDA:
      return "cuda";
    default:
      return "auto";
  }
}

int numerics_from_name(const std::string& name) { return name == "exact" ? KDA_EXACT : name == "fast" ? KDA_FAST : -1; }

const char* numerics_name(int numerics) { return numerics == KDA_FAST ? "fast" : "exact"; }

void add_threads_option(CLI::App& command, int& threads) {
  constexpr int kMaxThreads = 1024;
  command.add_option("--threads", threads, "Threads of the cpu backend, 0 = one per core")
      ->check(number_between(0, kMaxThreads))
      ->option_text("N");
}

}  // namespace kda::cli
