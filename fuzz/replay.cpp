// A replay of any bytes: metadata, tensors, plan, call on the reference backend, comparison.
#include "cli/context.h"
#include "cli/replay/attempt.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto context = kda::cli::open_context(1, "", false);
  if (context) kda::cli::replay::attempt(std::as_bytes(std::span(data, size)), context->get(), 1 << 16);
  return 0;
}
