#include "cuda/workspace.h"

#include <algorithm>

#include "cuda/kernels.h"

namespace kda {
namespace cuda::chunk {
namespace {

constexpr int64_t kLeastSegmentChunks = 8;

int64_t align_up(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

Workspace workspace_of(const Problem& p) {
  Workspace w{};
  w.chunks = p.max_tokens / kTokens + p.max_rows;
  const int64_t packets = p.value_heads * int64_t{p.key_dim == 64 ? Packet<64>::kBytes : Packet<128>::kBytes};
  w.packets_at = align_up(w.chunks * 4);
  w.carry_bytes = p.slot_elements() * 4;
  w.segment_chunks = w.chunks;
  w.bytes = w.packets_at + w.chunks * packets;
  w.carry_at = w.bytes;
  // lists in host memory come behind the kernel's own part
  const int64_t limit = (p.max_workspace_bytes - host_list_bytes(p)) / 256 * 256;
  if (w.bytes > limit) {
    const int64_t room = limit - w.packets_at - 2 * w.carry_bytes;
    w.segment_chunks = std::max(room / packets, std::min(w.chunks, kLeastSegmentChunks));
    w.carry_at = w.packets_at + w.segment_chunks * packets;
    w.bytes = w.carry_at + 2 * w.carry_bytes;
  }
  return w;
}

}  // namespace cuda::chunk

int64_t cuda_extend_chunks_workspace(const Problem& p) {
  if ((p.key_dim != 64 && p.key_dim != 128) || (p.value_dim != 64 && p.value_dim != 128)) return 0;
  return cuda::chunk::workspace_of(p).bytes;
}

int64_t host_list_bytes(const Problem& p) {
  using cuda::align_host_list;
  constexpr int64_t kIndex = sizeof(int64_t);
  // slots, dst_slots, record_rows, tips or pending tips, pending record rows
  constexpr int64_t kRowLists = 5, kSnapshotLists = 3;
  const int64_t rows = align_host_list((p.max_rows + 1) * kIndex), nodes = p.max_rows * p.max_nodes;
  int64_t bytes =
      rows * (kRowLists + 1) + align_host_list(p.max_rows) + kSnapshotLists * align_host_list(p.max_snapshots * kIndex);
  // parents, node_slots
  bytes += align_host_list(std::max(p.max_tokens, nodes) * kIndex) + align_host_list(nodes * kIndex);
  constexpr int64_t kMoveEntries = cuda::kMoveSharedBytes / 16;  // a move call of 16-byte pieces takes no more
  const uint32_t moves = KDA_OPERATION_BIT(KDA_MOVE) | KDA_OPERATION_BIT(KDA_CONV_MOVE);
  return (p.operations & moves) != 0 ? std::max(bytes, 2 * align_host_list(kMoveEntries * kIndex)) : bytes;
}

}  // namespace kda
