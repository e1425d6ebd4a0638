#include "api/check_lists.h"

namespace kda {

Status fail_slot_range(const Call& call, const char* list, int64_t entry, int64_t slot, int64_t slots) {
  return call.fail(KDA_E_SLOT_RANGE,
                   FixedText<>("%s[%lld] = %lld", list, static_cast<long long>(entry), static_cast<long long>(slot)),
                   FixedText<>("slots below %lld", static_cast<long long>(slots)));
}

Status fail_conflict(const Call& call, Conflict conflict, const SlotUse& first, const SlotUse& second) {
  const bool twice = conflict == Conflict::written_twice;
  const FixedText<> asked("%s[%lld] writes slot %lld, %s[%lld] %s slot %lld of the same memory", first.list,
                          static_cast<long long>(first.entry), static_cast<long long>(first.slot), second.list,
                          static_cast<long long>(second.entry), twice ? "writes" : "reads",
                          static_cast<long long>(second.slot));
  return call.fail(twice ? KDA_E_SLOT_DUPLICATE : KDA_E_SLOT_ALIASED, asked,
                   twice ? "written slots that are distinct" : "written slots that no other row reads");
}

Status fail_snapshot(const Call& call, int64_t entry, const char* what, int64_t value, const char* supported) {
  return call.fail(
      KDA_E_SNAPSHOT,
      FixedText<>("snapshots[%lld]: %s %lld", static_cast<long long>(entry), what, static_cast<long long>(value)),
      supported);
}

}  // namespace kda
