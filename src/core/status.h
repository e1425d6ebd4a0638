// Status of an operation inside the library: a code, and on failure texts in the caller's kda_error.
#pragma once

#include "core/types.h"

namespace kda {

using Status = kda_status;

// Fills the caller's kda_error (may be null) with formatted texts and returns the code. Never allocates.
// Defined in errors/report.cpp; the catalogue supplies the message and, where way_out is null, the way out.
struct ErrorSink {
  kda_error* error = nullptr;
  Status fail(Status code, const char* asked, const char* supported, const char* way_out = nullptr) const;
  // printf-style texts for `asked` and `supported`
  [[gnu::format(printf, 3, 5)]] Status failf(Status code, const char* asked_format, const char* supported, ...) const;
};

}  // namespace kda
