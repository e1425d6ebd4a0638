#include "cuda/sequence_launch.h"

namespace kda::cuda {

template <StateLayout Layout, int KP, int R, bool AnyMemory>
using Bf16Tile = StateTile<__nv_bfloat16, Layout, KP, R, AnyMemory>;

Status launch_sequence_bf16(const Problem& p, SequenceArgs& args, const Execution& execution) {
  return launch_sequence<Bf16Tile, 8, 4, 2, false>(p, args, execution);
}

}  // namespace kda::cuda
