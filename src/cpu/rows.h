// What a row of a call means: the null rule, fresh rows, sources and destinations. One home for every cpu kernel.
#pragma once

#include "core/launch.h"

namespace kda::cpu {

// A row after the null rule; slots are -1 where there is nothing to read or to write.
struct Row {
  int64_t index = 0;
  int64_t begin = 0, end = 0;  // tokens
  bool null = false;
  int64_t source = -1;       // -1: starts from zero
  int64_t destination = -1;  // -1: the final state is not stored
  bool in_place = false;     // destination is the slot it was read from (or would have been)
  int64_t length() const { return end - begin; }
};

// Slot 0 of the plan's own pool is null under null_slot0; a pool elsewhere keeps its slot 0.
template <class Pool>
bool skipped_slot(const Problem& problem, int64_t slot, const Pool& pool, const Pool& own) {
  return slot < 0 || slot >= pool.slots || (slot == 0 && problem.null_slot0 && pool.base == own.base);
}

template <class Pool>
Row resolve_row(const Problem& problem, const Rows& rows, const Pool& state, const Pool& dst, int64_t index) {
  Row row{.index = index};
  if (rows.cu_seqlens.present()) {
    row.begin = rows.cu_seqlens.at(index);
    row.end = rows.cu_seqlens.at(index + 1);
  } else {
    row.begin = index;
    row.end = index + 1;
  }
  int64_t slot = -1;
  if (rows.slots.present()) {
    slot = rows.slots.at(index);
    row.null = slot < 0 || slot >= state.slots || (slot == 0 && problem.null_slot0);
    if (row.null) return row;
    if (rows.has_state.at(index)) row.source = slot;
  }
  if (rows.dst_slots.present()) {
    const int64_t to = rows.dst_slots.at(index);
    if (!skipped_slot(problem, to, dst, state)) row.destination = to;
    row.in_place = to == slot && dst.base == state.base;
  } else {
    row.destination = slot;
    row.in_place = true;
  }
  return row;
}

// Pieces of a call over units: (row, value head, range of value rows). More pieces than units only where there are
// fewer units than threads can share.
struct UnitSplit {
  int64_t rows, heads, parts, part_rows, value_dim;
  int64_t count() const { return rows * heads * parts; }
};
struct Unit {
  int64_t row, head, first_row, rows;
  bool first_part;
};

inline UnitSplit split_units(const Problem& problem, int64_t rows, int threads) {
  UnitSplit s{.rows = rows,
              .heads = problem.value_heads,
              .parts = 1,
              .part_rows = problem.value_dim,
              .value_dim = problem.value_dim};
  const int64_t units = rows * s.heads;
  if (threads > 1 && units > 0 && units < 4 * threads) {
    constexpr int64_t kSmallestPart = 32;  // below this the preparation of tokens, repeated per part, would dominate
    const int64_t wanted = (4 * threads + units - 1) / units;
    s.part_rows = (problem.value_dim + wanted - 1) / wanted;
    s.part_rows = (s.part_rows + kSmallestPart - 1) / kSmallestPart * kSmallestPart;
    s.parts = (problem.value_dim + s.part_rows - 1) / s.part_rows;
  }
  return s;
}

inline Unit unit_of(const UnitSplit& s, int64_t piece) {
  const int64_t part = piece % s.parts, unit = piece / s.parts;
  const int64_t first = part * s.part_rows;
  const int64_t rows = s.value_dim - first < s.part_rows ? s.value_dim - first : s.part_rows;
  return {.row = unit / s.heads, .head = unit % s.heads, .first_row = first, .rows = rows, .first_part = part == 0};
}

}  // namespace kda::cpu
