#include "cuda/wy.h"

namespace kda::cuda {

bool launch_wy_tuned_bf16(const Problem& p, const SequenceArgs& args, const Execution& execution, Status& status) {
  return launch_wy_tuned<__nv_bfloat16>(p, args, execution, status);
}

}  // namespace kda::cuda
