// What the CUDA driver and the GPUs of this machine are. Nothing here creates a CUDA context except where said.
#pragma once

namespace kda {

// The device to use: `wanted` (-1 = the current one), or -1 if there is no driver or no such device.
int cuda_probe_device(int wanted);

// Compute capability times 10 (90 = Hopper); 0 if unknown.
int cuda_compute_capability(int device);

// Most bytes of shared memory a block may ask for.
int cuda_shared_memory_limit(int device);

// Whether the current device can start a kernel before the one ahead of it ends (Hopper and later).
bool cuda_launches_early();

}  // namespace kda
