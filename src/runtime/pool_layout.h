// Where each part of a pool's memory lies. Pure arithmetic: asked before launch by kda_pool_planned_bytes, used by the
// pool afterwards, so that the two cannot disagree.
#pragma once

#include "core/problem.h"
#include "core/record_format.h"

namespace kda {

struct PoolLayout {
  int32_t layers = 1;
  int32_t first_slot = 0;   // 1 where slot 0 is null
  int32_t slot_count = 0;   // in the tensors, the null slot included
  int32_t record_rows = 0;  // a layer

  int64_t state_slot_bytes = 0;  // slot strides; slots start on kPoolAlignment
  int64_t conv_slot_bytes = 0;
  int64_t record_row_bytes = 0;
  int64_t conv_record_row_bytes = 0;

  // Byte offsets of layer 0 and strides between layers. A stride is a multiple of kPoolAlignment.
  int64_t state_offset = 0, state_layer_stride = 0;
  int64_t conv_offset = 0, conv_layer_stride = 0;
  int64_t record_offset = 0, record_layer_stride = 0;
  int64_t conv_record_offset = 0, conv_record_layer_stride = 0;
  int64_t total_bytes = 0;
};

// A cache line, and what cp.async.bulk and 64-byte vector loads ask for.
constexpr int64_t kPoolAlignment = 64;

// slots: sequences served (without the null slot). Returns false where the sizes overflow 63 bits.
bool pool_layout(const Problem& problem, int32_t slots, int32_t layers, int32_t record_rows, PoolLayout* out);

}  // namespace kda
