// One random call of each operation on one backend, checked against the judge: outputs, states, snapshots, and that
// nothing else was written.
#pragma once

#include "parity/harness.h"

namespace parity {

void check_extend(const Target& target, const Spec& spec, Random& r);
void check_decode(const Target& target, const Spec& spec, Random& r);
// verify with records, node_states and node_slots; then commit with snapshots
void check_verify_and_commit(const Target& target, const Spec& spec, Random& r);
// verify, then the next round's verify with that commit pending
void check_verify_pending(const Target& target, const Spec& spec, Random& r);
void check_move(const Target& target, const Spec& spec, Random& r);

void check_conv_extend(const Target& target, const Spec& spec, Random& r);
void check_conv_decode(const Target& target, const Spec& spec, Random& r);
void check_conv_verify_and_commit(const Target& target, const Spec& spec, Random& r);
void check_conv_verify_pending(const Target& target, const Spec& spec, Random& r);
void check_conv_move(const Target& target, const Spec& spec, Random& r);

// Rows of the given lengths with random slots: some null, some fresh, in place or to destinations, forks. Slots beyond
// the rows' own are spare: [spare(0), spare(1), ...).
struct Layout {
  std::vector<int64_t> slot_order;  // sources, destinations, spare ones
  int rows = 0;
  int64_t spare(int i) const { return slot_order[size_t(2 * rows + i)]; }
};
constexpr int kSpareSlots = 24;

enum class Destination { any, in_place };
Rows random_rows(Random& r, const std::vector<int64_t>& lengths, int64_t first, bool null_slot0,
                 Destination destination, Layout* layout);

std::vector<int64_t> random_lengths(Random& r, int rows, int longest);

// Inputs of null rows are NaN: reading them shows.
void poison_null_rows(const Rows& rows, const TokenTensors& t);

// A draft: parents of every row, and as the tensor that a call passes (packed, by row, or absent for chains).
struct Draft {
  std::vector<std::vector<int>> parents;
  Tensor tensor;
};
Draft random_draft(Random& r, const Rows& rows, int64_t tokens, int max_nodes, bool single_root);

// A list of snapshots: S entries of (row, position, slot), some negative.
struct Snapshots {
  std::vector<int64_t> rows, positions, slots;
  Tensor rows_t, positions_t, slots_t, pool;
  bool own = false;  // the pool is the state pool
  kda_snapshots abi() const;
  void add(int64_t row, int64_t position, int64_t slot);
  void pack(Random& r);
  // Slots to be written for (row, position).
  std::vector<int64_t> at(int64_t row, int64_t position, bool null_slot0) const;
};
// Positions of a row are drawn from positions(row), a list.
template <class Positions>
Snapshots random_snapshots(Random& r, const Rows& rows, const Layout& layout, int first_spare,
                           const Positions& positions, const Tensor& own, const Tensor& other) {
  Snapshots s;
  s.own = r.chance(0.4);
  s.pool = s.own ? own : other;
  const int count = r.in(0, 7);
  for (int i = 0; i < count; ++i) {
    const int row = r.in(0, rows.count() - 1);
    const int64_t slot = s.own ? layout.spare(first_spare + i) : i;
    const int kind = r.in(0, 9);
    const std::vector<int64_t> choices = positions(row);
    if (choices.empty()) continue;
    s.add(kind == 0 ? -1 : row, kind == 1 ? -3 : r.pick(choices), kind == 2 ? -1 : slot);
  }
  s.pack(r);
  return s;
}

constexpr int kFastStep = 16;  // fast extend takes snapshots at multiples of this and at the row's end
// Of [0, length] of a row: where extend may take a snapshot.
inline std::vector<int64_t> positions_of(const Rows& rows, int row, int step = 1) {
  std::vector<int64_t> all;
  for (int64_t at = 0; at < rows.length(row); at += step) all.push_back(at);
  all.push_back(rows.length(row));
  return all;
}
// The nodes a commit passes.
inline std::vector<int64_t> accepted(const std::vector<int>& parents, int64_t tip) {
  const std::vector<int> path = judge::path_to(parents, int(tip));
  return {path.begin(), path.end()};
}

std::vector<int64_t> random_tips(Random& r, const Rows& rows);

}  // namespace parity
