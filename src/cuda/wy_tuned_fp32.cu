#include "cuda/wy.h"

namespace kda::cuda {

bool launch_wy_tuned_fp32(const Problem& p, const SequenceArgs& args, const Execution& execution, Status& status) {
  return launch_wy_tuned<float>(p, args, execution, status);
}

}  // namespace kda::cuda
