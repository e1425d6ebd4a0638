// Copies into shared memory that run beside the threads (cp.async, sm_80 and later), and the transposition of 8 by 8
// matrices between the registers of a warp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kda::cuda {

// 16 bytes from global to shared memory, both 16-byte aligned.
__device__ inline void async_copy16(void* shared, const void* global) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

// Waits for this thread's copies.
__device__ inline void wait_for_async_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Lane 4g + j gives elements 2j and 2j + 1 of row g and gets elements 2j and 2j + 1 of column g.
__device__ inline uint32_t transpose_8x8(uint32_t pair) {
  uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

}  // namespace kda::cuda
