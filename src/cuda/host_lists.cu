#include <algorithm>
#include <cstring>

#include "cuda/device/move.cuh"
#include "cuda/host.h"
#include "cuda/host_lists.h"

namespace kda {
namespace cuda {

constexpr int kListThreads = 256;

struct HostListArgs {
  HostListChunk chunk;
  std::byte* to;
  int count;
};

__global__ void __launch_bounds__(kListThreads) write_host_lists_kernel(const __grid_constant__ HostListArgs args) {
  for (int i = threadIdx.x; i < args.count; i += kListThreads) args.to[i] = args.chunk.bytes[i];
}

}  // namespace cuda

namespace {

constexpr int64_t kListAlignment = 16;

int64_t aligned(int64_t bytes) { return (bytes + kListAlignment - 1) / kListAlignment * kListAlignment; }

}  // namespace

int64_t host_list_bytes(const Problem& p) {
  constexpr int64_t kIndex = sizeof(int64_t);
  // slots, dst_slots, record_rows, tips or pending tips, pending record rows
  constexpr int64_t kRowLists = 5, kSnapshotLists = 3;
  const int64_t rows = aligned((p.max_rows + 1) * kIndex), nodes = p.max_rows * p.max_nodes;
  int64_t bytes = rows * (kRowLists + 1) + aligned(p.max_rows) + kSnapshotLists * aligned(p.max_snapshots * kIndex);
  bytes += aligned(std::max(p.max_tokens, nodes) * kIndex) + aligned(nodes * kIndex);  // parents, node_slots
  constexpr int64_t kMoveEntries = cuda::kMoveSharedBytes / 16;  // a move call of 16-byte pieces takes no more
  const uint32_t moves = KDA_OPERATION_BIT(KDA_MOVE) | KDA_OPERATION_BIT(KDA_CONV_MOVE);
  return (p.operations & moves) != 0 ? std::max(bytes, 2 * aligned(kMoveEntries * kIndex)) : bytes;
}

std::byte* HostListStager::begin_list() {
  const int64_t begin = aligned(used_);
  constexpr std::byte kZero{};
  while (used_ < begin) push(&kZero, 1);
  return area_ + begin;
}

void HostListStager::push(const void* value, int size) {
  if (used_ + size <= bytes_) {
    if (used_ + size - chunk_begin_ > HostListChunk::kBytes) flush();
    std::memcpy(chunk_.bytes + (used_ - chunk_begin_), value, static_cast<size_t>(size));
  }
  used_ += size;
}

void HostListStager::flush() {
  if (status_ == KDA_OK && used_ > chunk_begin_) {
    const cuda::HostListArgs args{chunk_, area_ + chunk_begin_, static_cast<int>(used_ - chunk_begin_)};
    Execution execution;
    execution.stream = stream_;
    status_ = cuda::launch<cuda::write_host_lists_kernel>(1, 1, cuda::kListThreads, 0, execution, args);
  }
  chunk_begin_ = used_;
}

void HostListStager::stage(IndexView& view) {
  if (!view.present() || !view.on_host) return;
  const int64_t columns = std::min(view.columns, std::max<int64_t>(most_columns_, 1));
  std::byte* copy = begin_list();
  for (int64_t row = 0; row < view.count; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t wide = view.at(row, column);
      const auto narrow = static_cast<int32_t>(wide);
      view.wide ? push(&wide, sizeof(wide)) : push(&narrow, sizeof(narrow));
    }
  }
  view = {.data = copy, .wide = view.wide, .count = view.count, .columns = columns, .stride = columns};
}

void HostListStager::stage(FlagView& view, int64_t count) {
  if (!view.present() || !view.on_host) return;
  std::byte* copy = begin_list();
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t flag = view.at(i) ? 1 : 0;
    push(&flag, 1);
  }
  view = {.data = reinterpret_cast<const uint8_t*>(copy)};
}

Status HostListStager::finish() {
  if (used_ > bytes_) return KDA_E_PLAN_LIMIT;
  flush();
  return status_;
}

}  // namespace kda
