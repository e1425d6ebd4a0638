// The memory that a backend's calls work on.
#pragma once

#include <memory>

#include "cli/replay/run.h"

namespace kda::cli::replay {

// Host memory, or for KDA_BACKEND_CUDA copies on the current device (in a build without CUDA there are no such plans).
std::unique_ptr<CallMemory> memory_for(int backend);

}  // namespace kda::cli::replay
