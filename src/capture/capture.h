// KDA_CAPTURE: the first calls of a context become replay files, one each. A file holds the call's inputs, only the
// slots and record rows it touches (renumbered, and one unused of each that holds NaN), and its results. One layer is
// captured of a call over several; destinations that the form has no name for (a node pool of its own, node_states) are
// left out. Host memory only.
#pragma once

#include <memory>

#include "core/launch.h"
#include "plan/plan.h"

namespace kda {

class CallCapture {
 public:
  virtual ~CallCapture() = default;
  // After the kernel ran: reads the results and writes the file.
  virtual void finish() noexcept = 0;
};

// Before the kernel runs. Null if the call is not captured. The launch must outlive the capture.
template <class Launch>
std::unique_ptr<CallCapture> begin_capture(const kda_plan& plan, Operation operation, const Launch& launch);

// True once per call that is to be captured; counts it.
bool takes_capture(const kda_plan& plan);

}  // namespace kda
