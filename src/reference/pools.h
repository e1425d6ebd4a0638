// Which slots a row reads and writes (null rule, fresh rows), and how one unit's state lies in a pool.
#pragma once

#include "core/launch.h"
#include "reference/elements.h"
#include "reference/faults.h"

namespace kda::reference {

// Two views of the same pool; pools of one call that differ start at different addresses.
template <class Pool>
bool same_pool(const Pool& a, const Pool& b) {
  return a.present() && b.present() && a.layer_base(0) == b.layer_base(0);
}

inline int64_t token_begin(const Rows& rows, int64_t row) {
  const int64_t first =
      planted(Fault::cu_seqlens_start_ignored) && rows.cu_seqlens.present() ? rows.cu_seqlens.at(0) : 0;
  return rows.cu_seqlens.present() ? rows.cu_seqlens.at(row) - first : row;
}
inline int64_t token_end(const Rows& rows, int64_t row) { return token_begin(rows, row + 1); }

// The rows that take part: a negative slot (and slot 0 under null_slot0) makes a row null.
inline bool is_null(const Problem& problem, const Rows& rows, int64_t row) {
  if (!rows.slots.present()) return false;
  const int64_t slot = rows.slots.at(row);
  return (slot < 0 && !planted(Fault::null_row_ignored)) ||
         (problem.null_slot0 && slot == 0 && !planted(Fault::null_slot0_ignored));
}

// A store is skipped if its slot is negative, or if it names slot 0 of the plan's own pool under null_slot0.
template <class Pool>
bool is_skipped(const Problem& problem, int64_t slot, const Pool& pool, const Pool& own) {
  return slot < 0 || (problem.null_slot0 && slot == 0 && same_pool(pool, own) && !planted(Fault::null_slot0_ignored));
}

constexpr int64_t kNoSlot = -1;

inline int64_t named_slot(const Rows& rows, int64_t row) {
  const int64_t slot = rows.slots.at(row);
  return planted(Fault::null_row_ignored) && slot < 0 ? 0 : slot;
}

inline int64_t source_slot(const Rows& rows, int64_t row) {
  if (!rows.slots.present() || (!rows.has_state.at(row) && !planted(Fault::has_state_ignored)))
    return kNoSlot;  // fresh
  return named_slot(rows, row);
}

// Where a row's final state goes, or kNoSlot.
template <class Pool>
int64_t final_slot(const Problem& problem, const Rows& rows, int64_t row, const Pool& dst, const Pool& own) {
  if (rows.dst_slots.present() && !planted(Fault::dst_ignored)) {
    const int64_t slot = rows.dst_slots.at(row);
    return is_skipped(problem, slot, dst, own) ? kNoSlot : slot;
  }
  return rows.slots.present() ? named_slot(rows, row) : kNoSlot;
}

// One value head of one slot.
struct UnitPlace {
  std::byte* base;
  DType dtype;
  int64_t first;  // element of (value 0, key 0)
  int64_t value_stride, key_stride;
  int64_t at(int v, int k) const { return first + v * value_stride + k * key_stride; }
};

inline UnitPlace unit_place(const Problem& problem, std::byte* base, DType dtype, int64_t slot_begin, int value_head) {
  const int K = problem.key_dim, V = problem.value_dim;
  const bool vk = problem.state_layout == StateLayout::vk || planted(Fault::layout_ignored);
  return {base, dtype, slot_begin + int64_t{value_head} * V * K, vk ? K : 1, vk ? 1 : V};
}

inline UnitPlace unit_place(const Problem& problem, const StatePool& pool, int layer, int64_t slot, int value_head) {
  const int64_t stride = planted(Fault::slot_stride_ignored) ? problem.slot_elements() : pool.slot_stride;
  std::byte* base = planted(Fault::layer_stride_ignored) ? pool.layer_base(0) : pool.layer_base(layer);
  return unit_place(problem, base, pool.dtype, slot * stride, value_head);
}

// State of one unit while a kernel works on it: fp32 values, [V, K].
inline void load_state(const Problem& problem, const UnitPlace& from, float* state) {
  for (int v = 0; v < problem.value_dim; ++v)
    for (int k = 0; k < problem.key_dim; ++k)
      state[v * problem.key_dim + k] = static_cast<float>(load(from.dtype, from.base, from.at(v, k)));
}

inline void store_state(const Problem& problem, const float* state, const UnitPlace& to) {
  for (int v = 0; v < problem.value_dim; ++v)
    for (int k = 0; k < problem.key_dim; ++k) store(to.dtype, to.base, to.at(v, k), state[v * problem.key_dim + k]);
}

inline void load_or_zero(const Problem& problem, const StatePool& pool, int layer, int64_t slot, int value_head,
                         float* state) {
  if (slot == kNoSlot) {
    std::fill_n(state, problem.value_dim * problem.key_dim, 0.0f);
  } else {
    load_state(problem, unit_place(problem, pool, layer, slot, value_head), state);
  }
}

inline void round_state(const Problem& problem, DType dtype, float* state) {
  for (int i = 0; i < problem.value_dim * problem.key_dim; ++i) state[i] = round_to(dtype, state[i]);
}

// A copy between equal dtypes keeps every bit, NaN payloads included.
inline void copy_state(const Problem& problem, const StatePool& from, int64_t from_slot, const StatePool& to,
                       int64_t to_slot, int layer) {
  const std::byte* source = from.layer_base(layer) + from_slot * from.slot_stride * size_of(from.dtype);
  std::byte* target = to.layer_base(layer) + to_slot * to.slot_stride * size_of(to.dtype);
  if (from.dtype == to.dtype) {
    std::memmove(target, source, static_cast<size_t>(problem.slot_elements() * size_of(from.dtype)));
    return;
  }
  for (int64_t i = 0; i < problem.slot_elements(); ++i) store(to.dtype, target, i, load(from.dtype, source, i));
}

inline void zero_state(const Problem& problem, const StatePool& pool, int64_t slot, int layer) {
  std::memset(pool.layer_base(layer) + slot * pool.slot_stride * size_of(pool.dtype), 0,
              static_cast<size_t>(problem.slot_elements() * size_of(pool.dtype)));
}

// The final state of a row without tokens is its initial state.
inline void carry_state(const Problem& problem, const StatePool& state, int64_t source, const StatePool& dst,
                        int64_t target, int layer) {
  if (target == kNoSlot) return;
  if (source == kNoSlot) {
    zero_state(problem, dst, target, layer);
  } else if (!(source == target && same_pool(state, dst))) {
    copy_state(problem, state, source, dst, target, layer);
  }
}

}  // namespace kda::reference
