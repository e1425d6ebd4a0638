// move: slots copied to slots as one simultaneous assignment. A piece of every source is read before any destination is
// written, so cycles and chains need no analysis.
#include <cstring>

#include "cpu/half.h"
#include "cpu/kernels.h"
#include "cpu/rows.h"
#include "cpu/scratch.h"
#include "cpu/target_functions.h"

namespace kda {
namespace cpu {
namespace {

// A slot as `runs` runs of contiguous elements.
struct SlotShape {
  int64_t runs, run;
};

SlotShape shape_of(const Problem& p, const MoveLaunch&) { return {1, p.slot_elements()}; }
SlotShape shape_of(const Problem& p, const ConvMoveLaunch& launch) {
  const int64_t width = p.conv_width - 1;
  if (p.conv_layout == ConvLayout::wc) return {width, launch.channels};
  const bool packed = launch.source.channel_stride == width && launch.destination.channel_stride == width;
  return packed ? SlotShape{1, width * launch.channels} : SlotShape{launch.channels, width};
}
int64_t run_begin(const Problem&, const StatePool& pool, int64_t slot, int64_t) { return slot * pool.slot_stride; }
int64_t run_begin(const Problem& p, const ConvPool& pool, int64_t slot, int64_t run) {
  return slot * pool.slot_stride + run * (p.conv_layout == ConvLayout::wc ? pool.window_stride : pool.channel_stride);
}

template <class Pool>
void store_run(const TargetFunctions& f, const std::byte* from, const Pool& source, int64_t count, std::byte* to,
               const Pool& destination) {
  if (source.dtype == destination.dtype) {
    std::memcpy(to, from, count * size_of(source.dtype));
  } else if (source.dtype == DType::fp32) {
    f.narrow(reinterpret_cast<const float*>(from), count, destination.dtype, to);
  } else if (destination.dtype == DType::fp32) {
    f.widen(from, source.dtype, count, reinterpret_cast<float*>(to));
  } else {
    for (int64_t i = 0; i < count; ++i) store_element(load_element(from, source.dtype, i), to, destination.dtype, i);
  }
}

template <class Launch>
Status run_move(const Problem& problem, const Launch& launch, const Execution& execution) {
  const TargetFunctions& functions = target_functions(execution.cpu_target);
  const int64_t entries = launch.source_slots.count;
  if (entries == 0) return KDA_OK;
  const int64_t size = size_of(launch.source.dtype);
  const SlotShape shape = shape_of(problem, launch);
  const ScratchLayout layout = scratch_layout(problem);
  // Pieces are as long as a lane can stage for all entries; a list too long for one lane takes the whole workspace.
  constexpr int64_t kShortest = 16, kLongest = 4096;
  bool serial = false;
  int64_t staging = 4 * layout.lane_floats;
  if (staging / (entries * size) < min_of(shape.run, kShortest)) {
    serial = true;
    staging *= layout.lanes;
  }
  int64_t chunk = min_of(min_of(shape.run, kLongest), staging / (entries * size) / kShortest * kShortest);
  if (chunk == 0) chunk = min_of(shape.run, staging / (entries * size));
  if (chunk == 0) return KDA_E_PLAN_LIMIT;
  const int64_t chunks = (shape.run + chunk - 1) / chunk;

  const auto copy_piece = [&](std::byte* staged, int64_t piece) {
    const int64_t part = piece % chunks, run = piece / chunks % shape.runs;
    const int layer = static_cast<int>(piece / chunks / shape.runs);
    const int64_t first = part * chunk, count = min_of(chunk, shape.run - first);
    const auto skipped = [&](int64_t i) {
      return skipped_slot(problem, launch.source_slots.at(i), launch.source, launch.source) ||
             skipped_slot(problem, launch.destination_slots.at(i), launch.destination, launch.source);
    };
    for (int64_t i = 0; i < entries; ++i) {
      if (skipped(i)) continue;
      const int64_t from = run_begin(problem, launch.source, launch.source_slots.at(i), run) + first;
      std::memcpy(staged + i * chunk * size, launch.source.layer_base(layer) + from * size, count * size);
    }
    for (int64_t i = 0; i < entries; ++i) {
      if (skipped(i)) continue;
      const int64_t to = run_begin(problem, launch.destination, launch.destination_slots.at(i), run) + first;
      store_run(functions, staged + i * chunk * size, launch.source, count,
                launch.destination.layer_base(layer) + to * size_of(launch.destination.dtype), launch.destination);
    }
  };

  const int64_t pieces = launch.layers * shape.runs * chunks;
  if (serial) {
    for (int64_t i = 0; i < pieces; ++i) copy_piece(execution.workspace, i);
  } else {
    run_pieces(problem, execution, pieces, [&](Lane& lane, int64_t piece) { copy_piece(lane.memory(), piece); });
  }
  return KDA_OK;
}

}  // namespace
}  // namespace cpu

Status cpu_move(const Problem& problem, const MoveLaunch& launch, const Execution& execution) {
  return cpu::run_move(problem, launch, execution);
}

Status cpu_conv_move(const Problem& problem, const ConvMoveLaunch& launch, const Execution& execution) {
  return cpu::run_move(problem, launch, execution);
}

}  // namespace kda
