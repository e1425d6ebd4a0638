// Runs one case through the public ABI.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "cli/context.h"
#include "cli/replay/case.h"
#include "cli/replay/tensor.h"
#include "io/result.h"
#include "kda/kda.h"

namespace kda::cli::replay {

struct PreparedPlan {
  PlanPointer plan;
  kda_plan_info info = {};
  int backend = KDA_BACKEND_CPU;
  int numerics = KDA_EXACT;
};

// What the calls of a case wrote. Absent tensors stay absent.
struct Outputs {
  HostTensor out;
  HostTensor pool;       // state or conv_state
  HostTensor dst_pool;   // dst_state
  HostTensor snapshots;  // a pool of its own, one slot per list entry, when the file has no snapshot_slots
  HostTensor records;
  uint32_t status_bits = 0;  // KDA_DEVICE_*
};

// Where the tensors of a call live. This one is the host's; a backend with memory of its own derives from it.
class CallMemory {
 public:
  virtual ~CallMemory() = default;
  // Before the first call: may point the views at copies elsewhere.
  virtual io::Outcome upload(std::span<HostTensor* const>) { return io::Done{}; }
  // After the last call: brings contents back and points the views at them.
  virtual io::Outcome download(std::span<HostTensor* const>) { return io::Done{}; }
};

// Plans a case for one backend and numerics, or says why not.
// kernels: forced ones as in kda_problem, or null.
io::Result<PreparedPlan> prepare(const Case& replay, const kda_context* context, int backend, int numerics,
                                 const char* kernels = nullptr);

io::Result<Outputs> run(const Case& replay, const PreparedPlan& prepared, CallMemory& memory);

}  // namespace kda::cli::replay
