// Which fault is planted: the environment variable KDA_PLANTED_FAULT names it.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "reference/faults.h"

namespace kda::reference {
namespace {

Fault read_fault() {
  const char* name = std::getenv("KDA_PLANTED_FAULT");
  if (name == nullptr) return Fault::none;
#define KDA_FAULT(fault) \
  if (std::strcmp(name, #fault) == 0) return Fault::fault;
  KDA_REFERENCE_FAULTS(KDA_FAULT)
#undef KDA_FAULT
  std::fprintf(stderr, "KDA_PLANTED_FAULT=%s: no such fault\n", name);
  std::exit(2);
}

}  // namespace

Fault active_fault = read_fault();

}  // namespace kda::reference
