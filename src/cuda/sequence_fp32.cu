#include "cuda/sequence_launch.h"

namespace kda::cuda {

template <StateLayout Layout, int KP, int R, bool AnyMemory>
using Fp32Tile = StateTile<float, Layout, KP, R, AnyMemory>;

Status launch_sequence_fp32(const Problem& p, SequenceArgs& args, const Execution& execution) {
  return launch_sequence<Fp32Tile, 8, 4, 2, true>(p, args, execution);
}

}  // namespace kda::cuda
