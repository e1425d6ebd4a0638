// Walking a draft: ancestors, the order in which the exact kernels visit its nodes, and paths of recorded drafts.
#pragma once

#include "core/record_format.h"
#include "cuda/device/rows.cuh"

namespace kda::cuda {

constexpr int kWarpLanes = 32;

// Visiting order of one row's draft. Leaf children come first and leave the state alone; the other children follow,
// the largest subtree last. A child whose parent's state is gone starts again from the committed state and replays its
// ancestors. In a chain, step i is node i.
struct DraftProgram {
  static constexpr int kMaxSteps = 640;  // at most 16 restarts of 32 ancestors beside 64 nodes
  static constexpr uint8_t kLeaf = 1, kReplay = 2, kRestart = 4;
  int8_t parent[kMaxDraftNodes];
  uint64_t path[kMaxDraftNodes];  // bit i: node i is on the path to the node, the node included
  uint8_t node[kMaxSteps];
  uint8_t mode[kMaxSteps];
  int steps;
  int restarts;
  bool bad;  // a parent out of order
  int size[kMaxDraftNodes], offset[kMaxDraftNodes], position[kMaxDraftNodes], cost[kMaxDraftNodes];
  uint8_t restart[kMaxDraftNodes];
};

// The parent of node t of a row. Positions count from the row's first token, or from the row's line of [N, D].
__device__ inline int64_t draft_parent(const Draft& draft, bool single_root, int64_t row, int64_t first_token, int t) {
  if (single_root && t == 0) return -1;
  if (!present(draft.parents)) return t - 1;
  return draft.by_row ? index_at(draft.parents, row, t) : index_at(draft.parents, first_token + t);
}

// One warp fills p.parent and p.path; returns whether every parent is -1 or an earlier node.
__device__ inline bool load_parents(DraftProgram& p, const Draft& draft, bool single_root, int64_t row,
                                    int64_t first_token, int nodes) {
  const int lane = threadIdx.x % kWarpLanes;
  bool ok = true;
  for (int t = lane; t < nodes; t += kWarpLanes) {
    const int64_t parent = draft_parent(draft, single_root, row, first_token, t);
    const bool good = parent >= -1 && parent < t;
    ok = ok && good;
    p.parent[t] = good ? static_cast<int8_t>(parent) : int8_t{-1};
  }
  ok = __all_sync(0xffffffffu, ok);
  __syncwarp();
  for (int t = lane; t < nodes; t += kWarpLanes) {
    uint64_t path = 0;
    for (int i = t; i >= 0; i = p.parent[i]) path |= uint64_t{1} << i;
    p.path[t] = path;
  }
  __syncwarp();
  return ok;
}

// One warp computes the visiting order from p.parent and p.path.
__device__ inline void order_draft(DraftProgram& p, int nodes) {
  const int lane = threadIdx.x % kWarpLanes;
  bool chain = true;
  for (int t = lane; t < nodes; t += kWarpLanes) chain = chain && p.parent[t] == t - 1;
  if (__all_sync(0xffffffffu, chain)) {
    for (int t = lane; t < nodes; t += kWarpLanes) {
      p.node[t] = static_cast<uint8_t>(t);
      p.mode[t] = t == nodes - 1 ? DraftProgram::kLeaf : 0;
    }
    if (lane == 0) p.steps = nodes, p.restarts = 0;
    __syncwarp();
    return;
  }
  for (int t = lane; t < nodes; t += kWarpLanes) {
    int size = 0;
    for (int s = t; s < nodes; ++s) size += static_cast<int>(p.path[s] >> t & 1);
    p.size[t] = size;
  }
  __syncwarp();
  int restarts = 0;
  for (int t = lane; t < nodes; t += kWarpLanes) {
    // leaves by index, then inner nodes by size
    const int key = p.size[t] == 1 ? t : p.size[t] << 8 | t;
    int offset = 0;
    bool restart = false;
    for (int s = 0; s < nodes; ++s) {
      const int other = p.size[s] == 1 ? s : p.size[s] << 8 | s;
      if (p.parent[s] != p.parent[t] || other >= key) continue;
      offset += p.size[s];
      restart = restart || p.size[s] > 1;
    }
    restart = restart && p.size[t] > 1;
    p.offset[t] = offset;
    p.cost[t] = 1 + (restart ? __popcll(p.path[t]) - 1 : 0);
    p.restart[t] = restart ? DraftProgram::kRestart : uint8_t{0};
    restarts += restart;
  }
  for (int mask = 16; mask > 0; mask /= 2) restarts += __shfl_xor_sync(0xffffffffu, restarts, mask);
  __syncwarp();
  for (int t = lane; t < nodes; t += kWarpLanes) {
    int position = -1;
    for (uint64_t path = p.path[t]; path != 0; path &= path - 1) position += 1 + p.offset[__ffsll(path) - 1];
    p.position[t] = position;
  }
  __syncwarp();
  for (int t = lane; t < nodes; t += kWarpLanes) {
    int step = 0;
    for (int s = 0; s < nodes; ++s) step += p.position[s] < p.position[t] ? p.cost[s] : 0;
    uint8_t restart = p.restart[t];
    if (restart) {
      for (uint64_t path = p.path[t] & ~(uint64_t{1} << t); path != 0; path &= path - 1) {
        p.node[step] = static_cast<uint8_t>(__ffsll(path) - 1);
        p.mode[step++] = static_cast<uint8_t>(DraftProgram::kReplay | restart);
        restart = 0;
      }
    }
    p.node[step] = static_cast<uint8_t>(t);
    p.mode[step] = static_cast<uint8_t>(restart | (p.size[t] == 1 ? DraftProgram::kLeaf : 0));
  }
  int total = 0;
  for (int t = lane; t < nodes; t += kWarpLanes) total += p.cost[t];
  for (int mask = 16; mask > 0; mask /= 2) total += __shfl_xor_sync(0xffffffffu, total, mask);
  if (lane == 0) p.steps = total, p.restarts = restarts;
  __syncwarp();
}

// A recorded row, checked: its header and the path to a tip. Bits tell what was wrong.
struct RecordedPath {
  uint64_t nodes = 0;  // bit i: node i is on the path; visited in ascending order
  int written = 0;     // nodes of the record
  uint32_t bits = 0;
};
template <class Layout>
__device__ inline RecordedPath recorded_path(const std::byte* row, const Layout& layout, uint32_t magic, int max_nodes,
                                             int64_t tip) {
  RecordedPath r;
  const RecordHeader header = *reinterpret_cast<const RecordHeader*>(row);
  // every row has room for max_nodes parents: they are asked for together with the header
  const RecordParent* parents = reinterpret_cast<const RecordParent*>(row + sizeof(RecordHeader));
  const int lane = threadIdx.x % kWarpLanes;
  const int low = lane < max_nodes ? parents[lane].parent : -1;
  const int high = lane + 32 < max_nodes ? parents[lane + 32].parent : -1;
  if (header.magic != magic || header.version_form != layout.version_form || header.geometry != layout.geometry ||
      header.nodes < 0 || header.nodes > max_nodes) {
    r.bits = KDA_DEVICE_BAD_RECORD;
    return r;
  }
  r.written = header.nodes;
  if (tip >= header.nodes) {
    r.bits = KDA_DEVICE_BAD_TIP;
    return r;
  }
  for (int t = static_cast<int>(tip); t >= 0;) {
    r.nodes |= uint64_t{1} << t;
    const int low_parent = __shfl_sync(0xffffffffu, low, t & 31), high_parent = __shfl_sync(0xffffffffu, high, t & 31);
    const int parent = t < 32 ? low_parent : high_parent;
    if (parent >= t || parent < -1) {
      r.bits = KDA_DEVICE_BAD_RECORD;
      r.nodes = 0;
      return r;
    }
    t = parent;
  }
  return r;
}

}  // namespace kda::cuda
