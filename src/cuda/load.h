// Making a device ready for calls, once, when a plan is made.
#pragma once

#include "core/status.h"

namespace kda {

// Loads every kernel on the device and lets it use all the shared memory a block may have. The second time for a device
// it does nothing. KDA_E_CUDA_DEVICE if the driver refuses. From any thread.
Status cuda_load_kernels(int device);

}  // namespace kda
