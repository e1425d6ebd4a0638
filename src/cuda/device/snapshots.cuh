// States stored on the way: a warp finds the entries of its row in a snapshot list.
#pragma once

#include "cuda/device/rows.cuh"

namespace kda::cuda {

constexpr int64_t kNoStop = INT64_MAX;

// Entry e asks for row n at some position; sets `position`. False for skipped entries and for other rows.
template <class List>
__device__ inline bool snapshot_entry(const List& list, int64_t e, int64_t n, int64_t& position) {
  position = index_at(list.positions, e);
  return index_at(list.rows, e) == n;
}

// Extend: the nearest position after `after` at which a snapshot of row n is wanted.
template <class List>
__device__ inline int64_t next_snapshot(const List& list, int64_t n, int64_t after) {
  int64_t next = kNoStop;
  if (!present(list.rows)) return next;
  for (int64_t e = threadIdx.x % 32; e < list.rows.count; e += 32) {
    int64_t position;
    if (snapshot_entry(list, e, n, position) && position > after && position < next) next = position;
  }
  for (int mask = 16; mask > 0; mask /= 2) {
    const int64_t other = __shfl_xor_sync(0xffffffffu, next, mask);
    next = other < next ? other : next;
  }
  return next;
}

// Calls store(slot) for every valid entry of row n at `position`; the whole warp enters each call.
template <class List, class Store>
__device__ inline void for_snapshots_at(const List& list, int64_t n, int64_t position, bool own, bool null_slot0,
                                        const Store& store) {
  for (int64_t first = 0; first < list.rows.count; first += 32) {
    const int64_t e = first + threadIdx.x % 32;
    int64_t slot = -1, at;
    uint32_t ignored = 0;
    if (e < list.rows.count && snapshot_entry(list, e, n, at) && at == position) {
      slot = snapshot_slot(list, e, own, null_slot0, ignored);
    }
    for (unsigned hits = __ballot_sync(0xffffffffu, slot >= 0); hits != 0; hits &= hits - 1) {
      store(__shfl_sync(0xffffffffu, slot, __ffs(hits) - 1));
    }
  }
}

// Which recorded nodes of row n are wanted; bit i = node i.
template <class List>
__device__ inline uint64_t wanted_nodes(const List& list, int64_t n) {
  if (!present(list.rows)) return 0;
  unsigned low = 0, high = 0;
  for (int64_t e = threadIdx.x % 32; e < list.rows.count; e += 32) {
    int64_t position;
    if (!snapshot_entry(list, e, n, position)) continue;
    if (position >= 0 && position < 32) low |= 1u << position;
    if (position >= 32 && position < 64) high |= 1u << (position - 32);
  }
  low = __reduce_or_sync(0xffffffffu, low);
  high = __reduce_or_sync(0xffffffffu, high);
  return uint64_t{high} << 32 | low;
}

// Status bits of the list, seen from row n (row 0 also answers for entries that name no row). `good(position)` says
// whether this row has that position. Negative rows, positions and slots skip an entry silently.
template <class List, class Good>
__device__ inline uint32_t check_snapshots(const List& list, int64_t rows, int64_t n, bool own, bool null_slot0,
                                           const Good& good) {
  uint32_t bits = 0;
  if (!present(list.rows)) return bits;
  for (int64_t e = threadIdx.x % 32; e < list.rows.count; e += 32) {
    const int64_t row = index_at(list.rows, e), position = index_at(list.positions, e);
    if (n == 0 && row >= rows) bits |= KDA_DEVICE_BAD_ENTRY;
    if (row != n) continue;
    snapshot_slot(list, e, own, null_slot0, bits);
    if (position >= 0 && index_at(list.slots, e) >= 0 && !good(position)) bits |= KDA_DEVICE_BAD_ENTRY;
  }
  return __reduce_or_sync(0xffffffffu, bits);
}

}  // namespace kda::cuda
