// Do the lists of one call write a place twice, or write what another row reads? Works in blocks on the stack, so that
// calls of any size allocate nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace kda {

// One slot that a list entry reads or writes: the bytes [begin, end).
struct SlotUse {
  static constexpr int64_t kNoRow = -1;
  uintptr_t begin = 0, end = 0;
  int64_t row = kNoRow;  // may read what it writes itself
  int64_t entry = 0;     // in the list
  int64_t slot = 0;
  const char* list = "";
};

enum class Conflict { none, written_twice, written_and_read };

// each_write(visit) and each_read(visit) call visit(SlotUse) for every use, in a fixed order.
template <class EachWrite, class EachRead>
Conflict find_conflict(const EachWrite& each_write, const EachRead& each_read, SlotUse* first, SlotUse* second) {
  constexpr int64_t kBlock = 512;
  std::array<SlotUse, kBlock> block;
  const auto overlaps = [](const SlotUse& a, const SlotUse& b) { return a.begin < b.end && b.begin < a.end; };
  for (int64_t start = 0;; start += kBlock) {
    int64_t seen = 0;
    int64_t used = 0;
    each_write([&](const SlotUse& use) {
      if (seen >= start && used < kBlock) block[static_cast<size_t>(used++)] = use;
      ++seen;
    });
    const auto end = block.begin() + used;
    std::sort(block.begin(), end, [](const SlotUse& a, const SlotUse& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.entry < b.entry;
    });
    Conflict found = Conflict::none;
    const auto report = [&](Conflict conflict, const SlotUse& a, const SlotUse& b) {
      if (found != Conflict::none) return;
      found = conflict;
      *first = a;
      *second = b;
    };
    for (int64_t i = 1; i < used; ++i) {
      const SlotUse &a = block[static_cast<size_t>(i - 1)], &b = block[static_cast<size_t>(i)];
      if (overlaps(a, b)) report(Conflict::written_twice, a, b);
    }
    // The block's uses are disjoint by now, so only the last that starts before the end of a use can overlap it, or the
    // ones before it as long as they overlap.
    const auto check = [&](const SlotUse& use, bool is_read) {
      auto at = std::lower_bound(block.begin(), end, use.end,
                                 [](const SlotUse& a, uintptr_t limit) { return a.begin < limit; });
      while (at != block.begin() && overlaps(*--at, use)) {
        const bool own = is_read && use.row != SlotUse::kNoRow && at->row == use.row && at->begin == use.begin;
        if (!own) report(is_read ? Conflict::written_and_read : Conflict::written_twice, *at, use);
      }
    };
    int64_t index = 0;
    if (found == Conflict::none && seen > start + kBlock) {
      each_write([&](const SlotUse& use) {
        if (index++ >= start + kBlock) check(use, false);
      });
    }
    if (found == Conflict::none && used > 0) each_read([&](const SlotUse& use) { check(use, true); });
    if (found != Conflict::none || seen <= start + kBlock) return found;
  }
}

}  // namespace kda
