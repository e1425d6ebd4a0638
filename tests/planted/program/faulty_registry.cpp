// The registry of the library with every kernel behind planted::call_with_fault.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "planted/launch_faults.h"

namespace planted {
namespace {

LaunchFault read_fault() {
  const char* name = std::getenv("KDA_PLANTED_LAUNCH_FAULT");
  if (name == nullptr) return LaunchFault::none;
#define KDA_FAULT(fault) \
  if (std::strcmp(name, #fault) == 0) return LaunchFault::fault;
  KDA_LAUNCH_FAULTS(KDA_FAULT)
#undef KDA_FAULT
  std::fprintf(stderr, "KDA_PLANTED_LAUNCH_FAULT=%s: no such fault\n", name);
  std::exit(2);
}

}  // namespace

LaunchFault active_launch_fault() {
  static const LaunchFault fault = read_fault();
  return fault;
}

template <class Launch, kda::KernelFunction<Launch> kernel>
kda::Status faulty(const kda::Problem& problem, const Launch& launch, const kda::Execution& execution) {
  return call_with_fault<Launch>(kernel, problem, launch, execution);
}

}  // namespace planted

#define KDA_KERNEL_FUNCTION(op, kernel) &planted::faulty<LaunchOf<Operation::op>, &kernel>
#include "plan/registry.cpp"
