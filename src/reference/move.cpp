// Move: slots copied to slots as one simultaneous assignment.
#include "reference/kernels.h"
#include "reference/pools.h"

namespace kda {

using namespace reference;

namespace {

// Moves within one pool stage a piece of every slot here before any is written. The kernel allocates nothing, so the
// space is planned: this many bytes an entry at the largest call, with room for lists far longer than a batch.
constexpr int64_t kStagedBytesPerEntry = 64, kLeastEntries = 4096;

template <class Launch>
bool skips(const Problem& problem, const Launch& launch, int64_t entry) {
  return is_skipped(problem, launch.source_slots.at(entry), launch.source, launch.source) ||
         is_skipped(problem, launch.destination_slots.at(entry), launch.destination, launch.source);
}

// address(pool, slot, element) is the element's index in the pool's layer.
template <class Launch, class Address>
Status move_slots(const Problem& problem, const Launch& launch, int64_t elements, const Address& address,
                  const Execution& execution) {
  const int64_t entries = launch.source_slots.count;
  const DType from = launch.source.dtype, to = launch.destination.dtype;
  const int64_t bytes = size_of(from);
  const bool stage = same_pool(launch.source, launch.destination) && !planted(Fault::move_in_list_order);
  const int64_t staging = kStagedBytesPerEntry * std::max(problem.max_rows, kLeastEntries);
  const int64_t piece = stage ? std::min(elements, staging / (std::max<int64_t>(entries, 1) * bytes)) : elements;
  if (piece == 0) return KDA_E_PLAN_LIMIT;  // more entries than elements of staging
  for (int layer = 0; layer < launch.layers; ++layer) {
    const std::byte* source = launch.source.layer_base(planted(Fault::layer_stride_ignored) ? 0 : layer);
    std::byte* target = launch.destination.layer_base(planted(Fault::layer_stride_ignored) ? 0 : layer);
    for (int64_t first = 0; first < elements; first += piece) {
      const int64_t last = std::min(first + piece, elements);
      for (int64_t i = 0; stage && i < entries; ++i) {
        if (skips(problem, launch, i)) continue;
        for (int64_t e = first; e < last; ++e) {
          const int64_t at = address(launch.source, launch.source_slots.at(i), e);
          std::memcpy(execution.workspace + (i * piece + e - first) * bytes, source + at * bytes, size_t(bytes));
        }
      }
      for (int64_t i = 0; i < entries; ++i) {
        if (skips(problem, launch, i)) continue;
        for (int64_t e = first; e < last; ++e) {
          const int64_t at = address(launch.destination, launch.destination_slots.at(i), e);
          const std::byte* read = stage ? execution.workspace + (i * piece + e - first) * bytes
                                        : source + address(launch.source, launch.source_slots.at(i), e) * bytes;
          if (from == to) {
            std::memcpy(target + at * bytes, read, size_t(bytes));
          } else {
            store(to, target, at, load(from, read, 0));
          }
        }
      }
    }
  }
  return KDA_OK;
}

}  // namespace

int64_t reference_move_workspace(const Problem& problem) {
  return kStagedBytesPerEntry * std::max(problem.max_rows, kLeastEntries);
}

Status reference_move(const Problem& problem, const MoveLaunch& launch, const Execution& execution) {
  const auto address = [](const StatePool& pool, int64_t slot, int64_t element) {
    return slot * pool.slot_stride + element;
  };
  return move_slots(problem, launch, problem.slot_elements(), address, execution);
}

Status reference_conv_move(const Problem& problem, const ConvMoveLaunch& launch, const Execution& execution) {
  const int64_t channels = launch.channels;
  const auto address = [channels](const ConvPool& pool, int64_t slot, int64_t element) {
    return slot * pool.slot_stride + element / channels * pool.window_stride + element % channels * pool.channel_stride;
  };
  return move_slots(problem, launch, (problem.conv_width - 1) * channels, address, execution);
}

}  // namespace kda
