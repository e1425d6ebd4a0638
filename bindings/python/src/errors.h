// Statuses as exceptions: libkda.Error with code, status, asked, supported and way_out.
#pragma once

#include <nanobind/nanobind.h>

#include "kda/kda.h"

namespace kda_python {

namespace nb = nanobind;

kda_error fresh_error();

// Raises libkda.Error.
[[noreturn]] void throw_error(const kda_error& error);
// For what the binding finds itself: argument `name` is `found`, `wanted` would do.
[[noreturn]] void throw_argument_error(kda_status status, const char* name, const char* found, const char* wanted);

template <class F>
void check(F&& call) {
  kda_error error = fresh_error();
  const kda_status status = call(&error);
  if (status == KDA_OK) return;
  error.status = status;
  throw_error(error);
}

void bind_errors(nb::module_& m);

}  // namespace kda_python
