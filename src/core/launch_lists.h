// Every index list of a launch, whatever the operation.
#pragma once

#include "core/launch.h"

namespace kda {

// Calls visit(IndexView&) and visit(FlagView&) for each list of the launch, present or not.
template <class Launch, class Visit>
void for_each_list(Launch& launch, const Visit& visit) {
  const auto snapshots = [&](auto& list) { visit(list.rows), visit(list.positions), visit(list.slots); };
  if constexpr (requires { launch.rows; }) {
    visit(launch.rows.cu_seqlens), visit(launch.rows.slots), visit(launch.rows.dst_slots);
    visit(launch.rows.has_state);
  }
  if constexpr (requires { launch.snapshots; }) snapshots(launch.snapshots);
  if constexpr (requires { launch.pending_snapshots; }) snapshots(launch.pending_snapshots);
  if constexpr (requires { launch.draft; }) {
    visit(launch.draft.parents);
    visit(launch.pending.tips), visit(launch.pending.record_rows);
  }
  if constexpr (requires { launch.node_slots; }) visit(launch.node_slots);
  if constexpr (requires { launch.tips; }) visit(launch.tips);
  if constexpr (requires { launch.record_rows; }) visit(launch.record_rows);
  if constexpr (requires { launch.source_slots; }) visit(launch.source_slots), visit(launch.destination_slots);
}

}  // namespace kda
