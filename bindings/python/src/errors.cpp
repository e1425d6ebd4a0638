#include "errors.h"

#include <cstdio>

namespace kda_python {

kda_error fresh_error() {
  kda_error error{};
  error.struct_size = sizeof error;
  return error;
}

void throw_error(const kda_error& error) { throw_error(kda::Error(error)); }

void throw_error(const kda::Error& error) {
  const nb::object type = nb::module_::import_("libkda.errors").attr("Error");
  const char* message = *error.what() ? error.what() : kda_status_message(error.status());
  const nb::object value = type(message, error.status(), error.code(), error.asked().c_str(), error.supported().c_str(),
                                error.way_out().c_str());
  PyErr_SetObject(type.ptr(), value.ptr());
  throw nb::python_error();
}

void throw_argument_error(kda_status status, const char* name, const char* found, const char* wanted) {
  kda_error error = fresh_error();
  error.status = status;
  std::snprintf(error.asked, sizeof error.asked, "%s: %s", name, found);
  std::snprintf(error.supported, sizeof error.supported, "%s", wanted);
  std::snprintf(error.way_out, sizeof error.way_out, "pass %s", wanted);
  std::snprintf(error.message, sizeof error.message, "%s: %s (%.300s); expected %.300s", kda_status_code(status),
                kda_status_message(status), error.asked, error.supported);
  throw_error(error);
}

void bind_errors(nb::module_& m) {
  m.def(
      "status_text",
      [](int status) {
        return nb::make_tuple(kda_status_name(status), kda_status_code(status), kda_status_message(status));
      },
      nb::arg("status"), "Name, code and catalogue message of a status number.");
}

}  // namespace kda_python
