// Move: slots copied to slots as one simultaneous assignment. A block takes the same piece of every slot named: it
// reads all sources into shared memory before it writes any destination, so cycles and chains need no order.
#pragma once

#include "cuda/device/rows.cuh"
#include "cuda/workspace.h"

namespace kda::cuda {

constexpr int kMoveThreads = 256;

template <class Pool>
struct MoveArgs {
  Pool source, destination;
  IndexView source_slots, destination_slots;
  bool null_slot0;
  int unit_bytes;      // 16 (equal dtypes, aligned, contiguous slots) or the source's element size
  int64_t slot_units;  // units of a slot
  int64_t channels;    // conv
  int piece;           // units a block takes of each slot
  uint32_t* status;
};

__device__ inline int64_t element_offset(const StatePool& pool, int64_t, int64_t slot, int64_t e) {
  return slot * pool.slot_stride + e;
}
__device__ inline int64_t element_offset(const ConvPool& pool, int64_t channels, int64_t slot, int64_t e) {
  return slot * pool.slot_stride + e / channels * pool.window_stride + e % channels * pool.channel_stride;
}

template <class Pool>
__global__ void __launch_bounds__(kMoveThreads) move_kernel(const __grid_constant__ MoveArgs<Pool> a) {
  extern __shared__ __align__(16) std::byte staged[];
  const int layer = static_cast<int>(blockIdx.y);
  const std::byte* source = layer_base(a.source, layer);
  std::byte* destination = layer_base(a.destination, layer);
  const bool own = same_pool(a.source, a.destination);
  const int64_t first = int64_t{blockIdx.x} * a.piece;
  const int count = static_cast<int>(a.slot_units - first < a.piece ? a.slot_units - first : a.piece);
  const int64_t total = a.source_slots.count * count;
  const int source_bytes = a.source.dtype == DType::fp32 ? 4 : 2;
  const bool vector = a.unit_bytes == 16;

  auto entry = [&](int64_t i, int64_t& from, int64_t& to) {
    from = index_at(a.source_slots, i);
    to = index_at(a.destination_slots, i);
    const bool skip = from < 0 || to < 0 || (a.null_slot0 && (from == 0 || (own && to == 0)));
    const bool bad = !skip && (from >= a.source.slots || to >= a.destination.slots);
    if (bad && blockIdx.x == 0 && layer == 0) raise_status(a.status, KDA_DEVICE_BAD_ENTRY);
    return !skip && !bad;
  };
  for (int64_t x = threadIdx.x; x < total; x += kMoveThreads) {
    const int64_t i = x / count, unit = first + x % count;
    int64_t from, to;
    if (!entry(i, from, to)) continue;
    if (vector) {
      reinterpret_cast<uint4*>(staged)[x] = *reinterpret_cast<const uint4*>(
          source + element_offset(a.source, a.channels, from, 0) * source_bytes + unit * 16);
    } else {
      const std::byte* p = source + element_offset(a.source, a.channels, from, unit) * source_bytes;
      if (source_bytes == 4) {
        reinterpret_cast<uint32_t*>(staged)[x] = *reinterpret_cast<const uint32_t*>(p);
      } else {
        reinterpret_cast<uint16_t*>(staged)[x] = *reinterpret_cast<const uint16_t*>(p);
      }
    }
  }
  __syncthreads();
  for (int64_t x = threadIdx.x; x < total; x += kMoveThreads) {
    const int64_t i = x / count, unit = first + x % count;
    int64_t from, to;
    if (!entry(i, from, to)) continue;
    if (vector) {
      *reinterpret_cast<uint4*>(destination + element_offset(a.destination, a.channels, to, 0) * source_bytes +
                                unit * 16) = reinterpret_cast<const uint4*>(staged)[x];
      continue;
    }
    const int64_t at = element_offset(a.destination, a.channels, to, unit);
    if (a.source.dtype != a.destination.dtype) {
      store_element(destination, a.destination.dtype, at, load_element(staged, a.source.dtype, x));
    } else if (source_bytes == 4) {
      reinterpret_cast<uint32_t*>(destination)[at] = reinterpret_cast<const uint32_t*>(staged)[x];
    } else {
      reinterpret_cast<uint16_t*>(destination)[at] = reinterpret_cast<const uint16_t*>(staged)[x];
    }
  }
}

// check_values: do two rows write one slot, or does a row write a slot that another row reads?
template <class Pool>
__global__ void check_rows_kernel(const __grid_constant__ Rows rows, const __grid_constant__ Pool state,
                                  const __grid_constant__ Pool dst, bool null_slot0, uint32_t* status) {
  const int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (n >= rows.count) return;
  uint32_t bits = 0;
  const RowTarget mine = resolve_target(rows, state, dst, null_slot0, n, bits);
  if (mine.null || mine.dst < 0) return;
  const bool own = same_pool(dst, state) || !present(rows.dst_slots);
  for (int64_t i = 0; i < rows.count; ++i) {
    if (i == n) continue;
    const RowTarget other = resolve_target(rows, state, dst, null_slot0, i, bits);
    if (!other.null && (other.dst == mine.dst || (own && other.slot == mine.dst))) {
      raise_status(status, KDA_DEVICE_ALIASED_SLOT);
      return;
    }
  }
}

template <class Pool>
__global__ void check_moves_kernel(const __grid_constant__ MoveArgs<Pool> a) {
  const int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (n >= a.destination_slots.count || index_at(a.destination_slots, n) < 0 || index_at(a.source_slots, n) < 0) return;
  for (int64_t i = 0; i < n; ++i) {
    if (index_at(a.destination_slots, i) == index_at(a.destination_slots, n) && index_at(a.source_slots, i) >= 0) {
      raise_status(a.status, KDA_DEVICE_ALIASED_SLOT);
      return;
    }
  }
}

}  // namespace kda::cuda
