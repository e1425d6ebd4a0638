// Who holds which slot: ids, generations and pending marks. Knows nothing of memory. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "kda/kda.h"

namespace kda {

struct PendingMark {
  int32_t tip = -1;
  int32_t record_row = -1;
  bool present() const { return tip >= 0; }
};

class SlotTable {
 public:
  enum class Answer { ok, exhausted, stale, pending };

  // Ids first .. first+count-1.
  SlotTable(int32_t first, int32_t count);

  Answer acquire(kda_slot* out);
  Answer release(kda_slot slot);
  Answer check(kda_slot slot) const;
  // Live, and with nothing pending: what a fork or a snapshot needs.
  Answer check_settled(kda_slot slot) const;
  Answer set_pending(kda_slot slot, PendingMark mark);
  Answer get_pending(kda_slot slot, PendingMark* out) const;
  void count(int32_t* free_slots, int32_t* live_slots) const;

  int32_t first() const { return first_; }
  int32_t size() const { return static_cast<int32_t>(entries_.size()); }

 private:
  struct Entry {
    uint32_t generation = 0;
    bool live = false;
    PendingMark pending;
  };
  const Entry* find(kda_slot slot) const;  // null if stale; the mutex is held
  Entry* find(kda_slot slot) { return const_cast<Entry*>(static_cast<const SlotTable*>(this)->find(slot)); }

  const int32_t first_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  std::vector<int32_t> free_;  // indices into entries_; last in, first out: the slot used last is likeliest in cache
};

}  // namespace kda
