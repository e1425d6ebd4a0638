// Who a row is: its tokens, slot and destination, with the checks of values in device tensors.
#pragma once

#include "cuda/device/access.cuh"

namespace kda::cuda {

// Whether two views name the same pool. Pools of several layers may be named by a table of addresses alone.
template <class Pool>
__device__ inline bool same_pool(const Pool& a, const Pool& b) {
  if (a.layers.table != nullptr || b.layers.table != nullptr) return a.layers.table == b.layers.table;
  return a.base == b.base;
}

// Division by a number that the launcher knows: a quotient costs one multiplication. Dividends are below 2^31.
struct Divisor {
  uint32_t value = 1, multiplier = 0, shift = 0;
  Divisor() = default;
  explicit Divisor(int64_t d) : value(static_cast<uint32_t>(d)), shift(31) {
    while ((uint64_t{1} << (shift - 31)) < value) ++shift;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << shift) + value - 1) / value);
  }
  __device__ uint32_t quotient(uint32_t n) const { return static_cast<uint32_t>(uint64_t{n} * multiplier >> shift); }
};

// A block's part of the work: blocks count through the splits of a head's rows, then heads, then rows.
struct BlockGrid {
  Divisor splits, heads;
};
struct BlockPlace {
  int64_t n;
  int hv, split;
};
__device__ inline BlockPlace block_place(const BlockGrid& g) {
  const uint32_t unit = g.splits.quotient(blockIdx.x), n = g.heads.quotient(unit);
  return {n, static_cast<int>(unit - n * g.heads.value), static_cast<int>(blockIdx.x - unit * g.splits.value)};
}

struct RowTarget {
  int64_t slot = -1;  // where the row starts from; -1: from zero
  int64_t dst = -1;   // where its final state goes; -1: nowhere
  bool null = false;
  bool in_place = false;  // dst is the slot itself
};

// Row n's values in the index tensors. Apart from their interpretation, so that all loads can be in flight at once.
struct RowIndices {
  int64_t slot = 0, dst_slot = 0;
  bool has_state = true;
};
__device__ inline RowIndices load_row_indices(const Rows& rows, int64_t n) {
  RowIndices r;
  if (present(rows.slots)) {
    r.slot = index_at(rows.slots, n);
    r.has_state = flag_at(rows.has_state, n);
  }
  if (present(rows.dst_slots)) r.dst_slot = index_at(rows.dst_slots, n);
  return r;
}

// Their meaning after the null rule; adds KDA_DEVICE_* bits.
template <class Pool>
__device__ inline RowTarget resolve_target(const RowIndices& row, bool has_slots, bool has_dst_slots, const Pool& state,
                                           const Pool& dst, bool null_slot0, uint32_t& bits) {
  RowTarget t;
  if (has_slots) {
    if (row.slot < 0 || (null_slot0 && row.slot == 0)) {
      t.null = true;
      return t;
    }
    if (row.slot >= state.slots) {
      bits |= KDA_DEVICE_BAD_SLOT;
      t.null = true;
      return t;
    }
    t.slot = row.has_state ? row.slot : -1;
    t.dst = row.slot;
    t.in_place = true;
  }
  if (has_dst_slots) {
    const int64_t slot = row.dst_slot;
    const bool own = same_pool(dst, state);
    t.in_place = own && t.dst == slot;
    t.dst = slot;
    if (slot < 0 || (null_slot0 && own && slot == 0)) {
      t.dst = -1;
    } else if (slot >= dst.slots) {
      bits |= KDA_DEVICE_BAD_ENTRY;
      t.dst = -1;
    }
  }
  return t;
}
template <class Pool>
__device__ inline RowTarget resolve_target(const Rows& rows, const Pool& state, const Pool& dst, bool null_slot0,
                                           int64_t n, uint32_t& bits) {
  return resolve_target(load_row_indices(rows, n), present(rows.slots), present(rows.dst_slots), state, dst, null_slot0,
                        bits);
}

struct RowRange {
  int64_t begin = 0, count = 0;
  bool bad = false;
};

// Tokens of row n; at most max_count of them.
__device__ inline RowRange resolve_range(const Rows& rows, int64_t n, int64_t max_count, uint32_t& bits) {
  if (!present(rows.cu_seqlens)) return {n, 1, n >= rows.tokens};
  const int64_t begin = index_at(rows.cu_seqlens, n), end = index_at(rows.cu_seqlens, n + 1);
  if (begin < 0 || end < begin || end > rows.tokens || end - begin > max_count) {
    bits |= KDA_DEVICE_BAD_CU_SEQLENS;
    return {0, 0, true};
  }
  return {begin, end - begin, false};
}

template <class Pool>
__device__ inline std::byte* slot_address(const Pool& pool, std::byte* base, int64_t slot) {
  return base + slot * pool.slot_stride * (pool.dtype == DType::fp32 ? 4 : 2);
}

// Where a snapshot entry goes; -1: nowhere.
template <class List>
__device__ inline int64_t snapshot_slot(const List& list, int64_t entry, bool own, bool null_slot0, uint32_t& bits) {
  const int64_t slot = index_at(list.slots, entry);
  if (slot < 0 || (null_slot0 && own && slot == 0)) return -1;
  if (slot >= list.pool.slots) {
    bits |= KDA_DEVICE_BAD_ENTRY;
    return -1;
  }
  return slot;
}

}  // namespace kda::cuda
