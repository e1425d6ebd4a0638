#include "cuda/sequence_launch.h"

namespace kda::cuda {

Status launch_sequence_rounded(const Problem& p, SequenceArgs& args, const Execution& execution) {
  return launch_sequence<RoundedTile, 4, 4, 4, true>(p, args, execution);
}

}  // namespace kda::cuda
