// Launch arguments: one struct per operation, complete and checked. A kernel reads these and decides nothing.
// Values in host tensors were checked by api/ before the launch; values in device tensors are checked by the kernel.
#pragma once

#include "core/problem.h"
#include "core/status.h"
#include "core/views.h"

namespace kda {

class ThreadPool;

// What a kernel may use while it runs. Memory belongs to the caller.
struct Execution {
  const ThreadPool* threads = nullptr;  // CPU backends
  int cpu_target = 0;                   // index into the CPU backend's table of SIMD targets; the context's choice
  void* stream = nullptr;               // CUDA
  std::byte* workspace = nullptr;       // plan's workspace_bytes
  uint32_t* device_status = nullptr;    // may be null; bits KDA_DEVICE_*
};

struct TokenInputs {
  TokenView q, k, v, a, b, out;  // b: heads along head_stride, one element each
  VectorView A_log, dt_bias;
  float scale = 0;
  float lower_bound = 0;
};

struct Rows {
  int64_t count = 0;     // N
  int64_t tokens = 0;    // T of the token tensors
  IndexView cu_seqlens;  // absent in decode: token n is row n
  IndexView slots;       // absent: all rows fresh, none null
  FlagView has_state;
  IndexView dst_slots;  // absent: in place
};

template <class Pool>
struct SnapshotList {
  IndexView rows, positions, slots;  // equal counts
  Pool pool;
  int64_t count() const { return rows.present() ? rows.count : 0; }
};
using StateSnapshots = SnapshotList<StatePool>;
using ConvSnapshots = SnapshotList<ConvPool>;

struct Draft {
  IndexView parents;  // packed [T] (columns 1) or [N, D] (columns D > 1 or `by_row`); absent = chain
  bool by_row = false;
};

struct PendingCommit {
  IndexView tips, record_rows;
  bool present() const { return tips.present(); }
};

struct ExtendLaunch {
  TokenInputs tokens;
  Rows rows;
  StatePool state, dst;  // dst == state when rows.dst_slots is absent or names the same pool
  StateSnapshots snapshots;
};

struct DecodeLaunch {
  TokenInputs tokens;
  Rows rows;
  StatePool state, dst;
};

struct VerifyLaunch {
  TokenInputs tokens;
  Rows rows;
  StatePool state, dst;  // dst: only with a pending commit
  Draft draft;
  RecordBuffer records;   // absent = write none
  IndexView record_rows;  // absent = the row's index
  // node_states [R, D, HV, V, K]: row stride and node stride in elements
  std::byte* node_states = nullptr;
  DType node_states_dtype = DType::fp32;
  int64_t node_states_rows = 0, node_states_nodes = 0, node_states_row_stride = 0, node_states_node_stride = 0;
  IndexView node_slots;  // [N, D]
  StatePool node_pool;
  PendingCommit pending;
  StateSnapshots pending_snapshots;
};

struct CommitLaunch {
  int layers = 1;
  Rows rows;
  IndexView tips;
  StatePool state, dst;
  RecordBuffer records;
  IndexView record_rows;
  StateSnapshots snapshots;
};

struct MoveLaunch {
  int layers = 1;
  StatePool source, destination;
  IndexView source_slots, destination_slots;
};

struct ConvLaunch {  // conv extend, decode and verify (with or without pending commit)
  TokenView x, out;  // heads unused
  int64_t channels = 0;
  std::byte* weight = nullptr;  // [C, W], channel stride in elements, tap contiguous
  int64_t weight_stride = 0;
  const std::byte* bias = nullptr;  // [C] contiguous, or null
  DType weight_dtype = DType::fp32;
  Rows rows;
  ConvPool state, dst;
  ConvSnapshots snapshots;  // extend's; in verify: the pending commit's
  Draft draft;
  RecordBuffer records;
  IndexView record_rows;
  PendingCommit pending;
};

struct ConvCommitLaunch {
  int layers = 1;
  int64_t channels = 0;
  Rows rows;
  IndexView tips;
  ConvPool state, dst;
  RecordBuffer records;
  IndexView record_rows;
  ConvSnapshots snapshots;
};

struct ConvMoveLaunch {
  int layers = 1;
  int64_t channels = 0;
  ConvPool source, destination;
  IndexView source_slots, destination_slots;
};

}  // namespace kda
