#include "runtime/slot_table.h"

namespace kda {

SlotTable::SlotTable(int32_t first, int32_t count) : first_(first), entries_(static_cast<size_t>(count)) {
  free_.reserve(entries_.size());
  for (int32_t i = count; i-- > 0;) free_.push_back(i);  // lowest id first
}

const SlotTable::Entry* SlotTable::find(kda_slot slot) const {
  const int64_t index = int64_t{slot.id} - first_;
  if (index < 0 || index >= static_cast<int64_t>(entries_.size())) return nullptr;
  const Entry& entry = entries_[static_cast<size_t>(index)];
  return entry.live && entry.generation == slot.generation ? &entry : nullptr;
}

SlotTable::Answer SlotTable::acquire(kda_slot* out) {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return Answer::exhausted;
  const int32_t index = free_.back();
  free_.pop_back();
  Entry& entry = entries_[static_cast<size_t>(index)];
  entry.live = true;
  entry.pending = {};
  ++entry.generation;
  *out = {first_ + index, entry.generation};
  return Answer::ok;
}

SlotTable::Answer SlotTable::release(kda_slot slot) {
  const std::lock_guard lock(mutex_);
  Entry* entry = find(slot);
  if (entry == nullptr) return Answer::stale;
  entry->live = false;
  entry->pending = {};
  free_.push_back(slot.id - first_);
  return Answer::ok;
}

SlotTable::Answer SlotTable::check(kda_slot slot) const {
  const std::lock_guard lock(mutex_);
  return find(slot) ? Answer::ok : Answer::stale;
}

SlotTable::Answer SlotTable::check_settled(kda_slot slot) const {
  const std::lock_guard lock(mutex_);
  const Entry* entry = find(slot);
  if (entry == nullptr) return Answer::stale;
  return entry->pending.present() ? Answer::pending : Answer::ok;
}

SlotTable::Answer SlotTable::set_pending(kda_slot slot, PendingMark mark) {
  const std::lock_guard lock(mutex_);
  Entry* entry = find(slot);
  if (entry == nullptr) return Answer::stale;
  entry->pending = mark;
  return Answer::ok;
}

SlotTable::Answer SlotTable::get_pending(kda_slot slot, PendingMark* out) const {
  const std::lock_guard lock(mutex_);
  const Entry* entry = find(slot);
  if (entry == nullptr) return Answer::stale;
  *out = entry->pending;
  return Answer::ok;
}

void SlotTable::count(int32_t* free_slots, int32_t* live_slots) const {
  const std::lock_guard lock(mutex_);
  *free_slots = static_cast<int32_t>(free_.size());
  *live_slots = size() - *free_slots;
}

}  // namespace kda
