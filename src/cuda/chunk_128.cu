#include "cuda/chunk_launch.h"

namespace kda::cuda::chunk {

Status launch_chunks_128(const Problem& p, Args& args, const Execution& execution) {
  return launch_chunks<128>(p, args, execution);
}

}  // namespace kda::cuda::chunk
