// The plan option check_values: device lists are searched for slots that are written twice or read by another row.
#pragma once

#include "core/launch.h"

namespace kda::cuda {

Status check_written_slots(const Rows& rows, const StatePool& state, const StatePool& dst, bool null_slot0,
                           const Execution& execution);
Status check_written_slots(const Rows& rows, const ConvPool& state, const ConvPool& dst, bool null_slot0,
                           const Execution& execution);

}  // namespace kda::cuda
