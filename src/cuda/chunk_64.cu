#include "cuda/chunk_launch.h"

namespace kda::cuda::chunk {

Status launch_chunks_64(const Problem& p, Args& args, const Execution& execution) {
  return launch_chunks<64>(p, args, execution);
}

}  // namespace kda::cuda::chunk
