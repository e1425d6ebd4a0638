// Statuses as exceptions: libkda.Error with code, status, asked, supported and way_out.
#pragma once

#include <nanobind/nanobind.h>

#include "kda/kda.hpp"

namespace kda_python {

namespace nb = nanobind;

kda_error fresh_error();

// Raises libkda.Error.
[[noreturn]] void throw_error(const kda_error& error);
[[noreturn]] void throw_error(const kda::Error& error);
// For what the binding finds itself: argument `name` is `found`, `wanted` would do.
[[noreturn]] void throw_argument_error(kda_status status, const char* name, const char* found, const char* wanted);

// Runs what the C++ layer throws from, as libkda.Error.
template <class F>
auto translated(F&& body) {
  try {
    return body();
  } catch (const kda::Error& error) {
    throw_error(error);
  }
}

template <class F>
void check(F&& call) {
  translated([&] { kda::check(call); });
}

void bind_errors(nb::module_& m);

}  // namespace kda_python
