#include "cuda/wy.h"

namespace kda::cuda {

Status launch_wy_fp32(const Problem& p, WyArgs& args, const Execution& execution) {
  return launch_wy<float>(p, args, execution);
}

}  // namespace kda::cuda
