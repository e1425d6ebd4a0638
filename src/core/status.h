// Status of an operation inside the library: a code, and on failure texts in the caller's kda_error.
#pragma once

#include "core/types.h"

namespace kda {

using Status = kda_status;

// Fills the caller's kda_error (may be null) with formatted texts and returns the code. Never allocates.
// Defined in errors/report.cpp; the catalogue supplies the message and, where way_out is null, the way out.
struct ErrorSink {
  kda_error* error = nullptr;
  // asked: what the caller gave ("q: fp16 [128, 4, 64]"); supported: what would do. core/text.h formats them.
  Status fail(Status code, const char* asked, const char* supported, const char* way_out = nullptr) const;
  // As fail, with a printf-style text for `asked`.
  [[gnu::format(printf, 3, 5)]] Status failf(Status code, const char* asked_format, const char* supported, ...) const;
};

}  // namespace kda
