// Random rows, drafts and lists for the phases.
#include "parity/phases.h"

namespace parity {

std::vector<int64_t> random_lengths(Random& r, int rows, int longest) {
  std::vector<int64_t> lengths;
  for (int i = 0; i < rows; ++i) lengths.push_back(r.chance(0.2) ? 0 : r.in(1, longest));
  return lengths;
}

Rows random_rows(Random& r, const std::vector<int64_t>& lengths, int64_t first, bool null_slot0,
                 Destination destination, Layout* layout) {
  Rows rows;
  rows.null_slot0 = null_slot0;
  rows.cu = cut(lengths, first);
  const int n = rows.count();
  layout->rows = n;
  layout->slot_order = r.permutation(2 * n + kSpareSlots);
  const bool to_dst = destination == Destination::any && r.chance(0.5);
  for (int i = 0; i < n; ++i) {
    const bool null = r.chance(0.15);
    const bool fork = to_dst && i > 0 && r.chance(0.3) && rows.slots.back() >= 0;
    rows.slots.push_back(null   ? r.pick<int64_t>({-1, -2, INT32_MIN})
                         : fork ? rows.slots.back()
                                : layout->slot_order[size_t(i)]);
    rows.has_state.push_back(r.chance(0.75));
    if (to_dst) rows.dst.push_back(r.chance(0.15) ? -1 : layout->slot_order[size_t(n + i)]);
  }
  // A fork of a fresh row would leave the slot both NaN and read: forks agree on having a state.
  for (int i = 1; i < n; ++i)
    if (rows.slots[size_t(i)] >= 0 && rows.slots[size_t(i)] == rows.slots[size_t(i) - 1])
      rows.has_state[size_t(i)] = rows.has_state[size_t(i) - 1];
  if (r.chance(0.3)) rows.has_state.clear();
  rows.pack(r);
  return rows;
}

void poison_null_rows(const Rows& rows, const TokenTensors& t) {
  const double nan = std::nan("");
  for (int i = 0; i < rows.count(); ++i) {
    if (!rows.null(i)) continue;
    for (int64_t token = rows.begin(i); token < rows.begin(i) + rows.length(i); ++token)
      for (const Tensor* x : {&t.q, &t.k, &t.v, &t.a})
        for (int64_t h = 0; h < (x->shape().size() == 3 ? x->size(1) : 1); ++h)
          for (int64_t c = 0; c < x->size(int(x->shape().size()) - 1); ++c)
            x->store(token * x->strides()[0] + (x->shape().size() == 3 ? h * x->strides()[1] : 0) + c, nan);
  }
}

Draft random_draft(Random& r, const Rows& rows, int64_t tokens, int max_nodes, bool single_root) {
  Draft draft;
  const bool chain = r.chance(0.2);
  std::vector<std::vector<int64_t>> entries;
  std::vector<int64_t> packed(static_cast<size_t>(tokens), -99);
  for (int i = 0; i < rows.count(); ++i) {
    std::vector<int> parents = judge::random_parents(r, int(rows.length(i)));
    for (size_t n = 0; chain && n < parents.size(); ++n) parents[n] = int(n) - 1;
    draft.parents.push_back(parents);
    std::vector<int64_t> listed(parents.begin(), parents.end());
    if (single_root && !listed.empty()) listed[0] = 0;
    entries.push_back(listed);
    std::copy(listed.begin(), listed.end(), packed.begin() + rows.begin(i));
  }
  if (chain && r.chance(0.7)) return draft;
  draft.tensor = r.chance(0.5) ? index_list(r, packed) : index_matrix(r, entries, max_nodes);
  return draft;
}

kda_snapshots Snapshots::abi() const {
  kda_snapshots abi{};
  if (rows.empty()) return abi;
  abi.rows = rows_t.dl();
  abi.positions = positions_t.dl();
  abi.slots = slots_t.dl();
  abi.pool = own ? nullptr : pool.dl();
  return abi;
}

void Snapshots::add(int64_t row, int64_t position, int64_t slot) {
  rows.push_back(row);
  positions.push_back(position);
  slots.push_back(slot);
}

void Snapshots::pack(Random& r) {
  rows_t = index_list(r, rows);
  positions_t = index_list(r, positions);
  slots_t = index_list(r, slots);
}

std::vector<int64_t> Snapshots::at(int64_t row, int64_t position, bool null_slot0) const {
  std::vector<int64_t> found;
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i] == row && positions[i] == position && slots[i] >= 0 && !(null_slot0 && own && slots[i] == 0))
      found.push_back(slots[i]);
  return found;
}

std::vector<int64_t> random_tips(Random& r, const Rows& rows) {
  std::vector<int64_t> tips;
  for (int i = 0; i < rows.count(); ++i)
    tips.push_back(r.chance(0.2) || rows.length(i) == 0 ? -1 : r.in(0, int(rows.length(i)) - 1));
  return tips;
}

}  // namespace parity
