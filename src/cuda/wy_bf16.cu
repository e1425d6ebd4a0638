#include "cuda/wy.h"

namespace kda::cuda {

Status launch_wy_bf16(const Problem& p, WyArgs& args, const Execution& execution) {
  return launch_wy<__nv_bfloat16>(p, args, execution);
}

}  // namespace kda::cuda
