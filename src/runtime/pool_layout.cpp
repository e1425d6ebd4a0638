#include "runtime/pool_layout.h"

namespace kda {
namespace {

// Running offset that remembers overflow.
class Carver {
 public:
  // Reserves count * bytes for each of `layers` layers; returns the offset and the layer stride.
  bool reserve(int64_t bytes, int64_t count, int64_t layers, int64_t* offset, int64_t* layer_stride) {
    int64_t layer = 0, all = 0;
    if (__builtin_mul_overflow(bytes, count, &layer)) return false;
    if (__builtin_add_overflow(layer, kPoolAlignment - 1, &layer)) return false;
    layer = layer / kPoolAlignment * kPoolAlignment;
    if (__builtin_mul_overflow(layer, layers, &all)) return false;
    *offset = end_;
    *layer_stride = layer;
    return !__builtin_add_overflow(end_, all, &end_);
  }
  int64_t end() const { return end_; }

 private:
  int64_t end_ = 0;
};

}  // namespace

bool pool_layout(const Problem& problem, int32_t slots, int32_t layers, int32_t record_rows, PoolLayout* out) {
  PoolLayout p;
  p.layers = layers;
  p.first_slot = problem.null_slot0 ? 1 : 0;
  if (__builtin_add_overflow(slots, p.first_slot, &p.slot_count)) return false;
  p.record_rows = record_rows;
  p.state_slot_bytes = align_up(problem.slot_elements() * size_of(problem.state), kPoolAlignment);
  p.record_row_bytes = align_up(record_layout(problem).row_bytes, kPoolAlignment);
  if (problem.conv_width > 0) {
    const int64_t window = (problem.conv_width - 1) * problem.conv_channels() * size_of(problem.conv_state);
    p.conv_slot_bytes = align_up(window, kPoolAlignment);
    p.conv_record_row_bytes = align_up(conv_record_layout(problem, problem.conv_channels()).row_bytes, kPoolAlignment);
  }
  Carver carver;
  const bool fits =
      carver.reserve(p.state_slot_bytes, p.slot_count, layers, &p.state_offset, &p.state_layer_stride) &&
      carver.reserve(p.conv_slot_bytes, p.slot_count, layers, &p.conv_offset, &p.conv_layer_stride) &&
      carver.reserve(p.record_row_bytes, record_rows, layers, &p.record_offset, &p.record_layer_stride) &&
      carver.reserve(p.conv_record_row_bytes, record_rows, layers, &p.conv_record_offset, &p.conv_record_layer_stride);
  p.total_bytes = carver.end();
  if (fits) *out = p;
  return fits;
}

}  // namespace kda
