// Contexts: the machine is probed and the environment read here, once.
#include <cstdlib>
#include <filesystem>

#include "api/guard.h"
#include "core/text.h"
#include "cpu/targets.h"
#include "plan/describe.h"
#include "plan/struct_size.h"

namespace kda {
namespace {

constexpr int kMostThreads = 1024;

Status choose_cpu_target(const char* name, int* target, const ErrorSink& sink) {
  *target = cpu_best_target();
  if (name == nullptr || *name == '\0') return KDA_OK;
  FixedText<> available;
  for (int i = 0; i < cpu_target_count(); ++i) {
    if (!cpu_target_available(i)) continue;
    if (std::strcmp(cpu_target_name(i), name) == 0) {
      *target = i;
      return KDA_OK;
    }
    available.add("%s%s", available.empty() ? "" : ", ", cpu_target_name(i));
  }
  return sink.failf(KDA_E_CPU_TARGET, "SIMD target \"%s\"", available, name);
}

Status read_capture(CaptureSettings* capture, const ErrorSink& sink) {
  const char* directory = std::getenv("KDA_CAPTURE");
  if (directory == nullptr || *directory == '\0') return KDA_OK;
  std::error_code ignored;
  std::filesystem::create_directories(directory, ignored);
  if (!std::filesystem::is_directory(directory, ignored)) {
    return sink.failf(KDA_E_CAPTURE, "KDA_CAPTURE=%s", "a directory that can be written", directory);
  }
  capture->directory = directory;
  if (const char* calls = std::getenv("KDA_CAPTURE_CALLS")) {
    char* end = nullptr;
    capture->calls = std::strtoll(calls, &end, 10);
    if (*calls == '\0' || *end != '\0' || capture->calls < 0) {
      return sink.failf(KDA_E_CAPTURE, "KDA_CAPTURE_CALLS=%s", "a number of calls, 0 or more", calls);
    }
  }
  return KDA_OK;
}

Status start_threads(const kda_context_options& options, kda_context* context, const ErrorSink& sink) {
  if (options.threads < 0 || options.threads > kMostThreads) {
    return sink.failf(KDA_E_THREADS, "threads = %d", "threads from 0 (one per usable core) to 1024", options.threads);
  }
  if (options.parallel_for != nullptr) {
    context->threads = std::make_unique<ThreadPool>(options.parallel_for, options.parallel_for_user);
    return KDA_OK;
  }
  const int threads = options.threads == 0 ? context->capabilities.usable_cores : options.threads;
  try {
    context->threads = std::make_unique<ThreadPool>(threads);
  } catch (const std::system_error& e) {
    return sink.failf(KDA_E_THREADS, "%d threads: %s", "as many threads as the system allows", threads, e.what());
  }
  return KDA_OK;
}

Status create_context(const kda_context_options* caller, kda_context** out, const ErrorSink& sink) {
  if (out == nullptr) return sink.fail(KDA_E_NULL, "out: NULL", "where the context goes");
  *out = nullptr;
  kda_context_options options{};
  if (caller != nullptr) {
    if (Status s = read_struct(caller, "kda_context_options", &options, sink)) return s;
  }
  if (options.cuda_device < -1) {
    return sink.failf(KDA_E_CUDA_DEVICE, "cuda_device = %d", "-1 (no CUDA), 0 (the current device) or n (device n-1)",
                      options.cuda_device);
  }
  constexpr int kLeastCapability = 10, kMostCapability = 999;
  const bool described = options.described_gpu != 0;
  if (described && (options.described_gpu < kLeastCapability || options.described_gpu > kMostCapability)) {
    return sink.failf(KDA_E_CUDA_DEVICE, "described_gpu = %d", "a compute capability times 10, such as 90; 0 = none",
                      options.described_gpu);
  }
  if (described && options.cuda_device != 0) {
    return sink.failf(KDA_E_CUDA_DEVICE, "described_gpu = %d with cuda_device = %d", "one of them",
                      options.described_gpu, options.cuda_device);
  }
  auto context = std::make_unique<kda_context>();
  context->capabilities = probe_capabilities(options.cuda_device, options.described_gpu);
  if (options.cuda_device > 0 && context->capabilities.gpu == 0) {
    return sink.failf(KDA_E_CUDA_DEVICE, "cuda_device = %d (device %d)", context->capabilities.missing(Backend::cuda),
                      options.cuda_device, options.cuda_device - 1);
  }
  const char* target = options.cpu_target != nullptr ? options.cpu_target : std::getenv("KDA_CPU_TARGET");
  if (Status s = choose_cpu_target(target, &context->cpu_target, sink)) return s;
  if (Status s = read_capture(&context->capture, sink)) return s;
  if (Status s = start_threads(options, context.get(), sink)) return s;
  *out = context.release();
  return KDA_OK;
}

}  // namespace
}  // namespace kda

extern "C" {

KDA_API const char* kda_version(void) {
#define KDA_TEXT_OF(x) #x
#define KDA_VERSION_TEXT(major, minor, patch) KDA_TEXT_OF(major) "." KDA_TEXT_OF(minor) "." KDA_TEXT_OF(patch)
  return KDA_VERSION_TEXT(KDA_VERSION_MAJOR, KDA_VERSION_MINOR, KDA_VERSION_PATCH);
}

KDA_API kda_status kda_context_create(const kda_context_options* options, kda_context** out, kda_error* error) {
  return kda::guarded(error, [&](const kda::ErrorSink& sink) { return kda::create_context(options, out, sink); });
}

KDA_API void kda_context_destroy(kda_context* context) { delete context; }

KDA_API kda_status kda_context_describe(const kda_context* context, char* buffer, size_t capacity, size_t* needed) {
  return kda::guarded(nullptr, [&](const kda::ErrorSink&) {
    return context == nullptr ? KDA_E_NULL : kda::copy_text(kda::describe_context(*context), buffer, capacity, needed);
  });
}

}  // extern "C"
