#include "errors.h"
#include "plan.h"
#include "tensors.h"

NB_MODULE(_core, m) {
  // Plans kept by a program's globals outlive the module at exit; that is no leak worth a page of text.
  nanobind::set_leak_warnings(false);
  m.doc() = "libkda's C ABI for Python. Use the package libkda.";
  m.attr("version") = kda_version();
  m.attr("abi_version") = KDA_ABI_VERSION;
  kda_python::bind_errors(m);
  kda_python::bind_view(m);
  kda_python::bind_plan(m);
  kda_python::bind_pool(m);
}
