#include "cuda/sequence_launch.h"

namespace kda::cuda {

Status launch_sequence_fp32(const Problem& p, SequenceArgs& args, const Execution& execution) {
  return launch_sequence<float>(p, args, execution);
}

}  // namespace kda::cuda
