#include "cuda/sequence_launch.h"

namespace kda::cuda {

Status launch_sequence_bf16(const Problem& p, SequenceArgs& args, const Execution& execution) {
  return launch_sequence<__nv_bfloat16>(p, args, execution);
}

}  // namespace kda::cuda
