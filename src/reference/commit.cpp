// Commit: the state along an accepted path, rebuilt from the committed state and the records of verify.
#include "reference/kernels.h"
#include "reference/records.h"

namespace kda {

using namespace reference;

namespace reference {

void write_record_node(const Problem& problem, std::byte* record, int64_t node, int value_head,
                       const TokenInputs& tokens, int64_t token, const TokenTerms& terms, const float* u) {
  const RecordLayout layout = record_layout(problem);
  const int K = problem.key_dim, V = problem.value_dim, head = value_head / problem.value_heads_per_head();
  std::byte* at = record + layout.nodes_begin + node * layout.node_bytes;
  for (int v = 0; v < V; ++v) store(DType::fp32, at, int64_t{value_head} * V + v, u[v]);
  const int64_t k_at = token * tokens.k.token_stride + head * tokens.k.head_stride;
  for (int c = 0; c < K; ++c) {
    store(DType::fp32, at + layout.decay, int64_t{value_head} * K + c, terms.decay[c]);
    store(problem.io, at + layout.k, int64_t{head} * K + c, load(tokens.k.dtype, tokens.k.data, k_at + c));
  }
  store(DType::fp32, at + layout.k_rnorm, int64_t{head} * 2, terms.k_rnorm.high);
  store(DType::fp32, at + layout.k_rnorm, int64_t{head} * 2 + 1, terms.k_rnorm.low);
}

void replay_node(const Problem& problem, const std::byte* record, int node, int value_head, float* state) {
  const RecordLayout layout = record_layout(problem);
  const int K = problem.key_dim, V = problem.value_dim, head = value_head / problem.value_heads_per_head();
  const std::byte* at = record + layout.nodes_begin + node * layout.node_bytes;
  float u[kMaxHeadDim], decay[kMaxHeadDim];
  double k[kMaxHeadDim];
  const double k_rnorm = load(DType::fp32, at + layout.k_rnorm, int64_t{head} * 2) +
                         load(DType::fp32, at + layout.k_rnorm, int64_t{head} * 2 + 1);
  for (int v = 0; v < V; ++v) u[v] = static_cast<float>(load(DType::fp32, at, int64_t{value_head} * V + v));
  for (int c = 0; c < K; ++c) {
    decay[c] = static_cast<float>(load(DType::fp32, at + layout.decay, int64_t{value_head} * K + c));
    k[c] = load(problem.io, at + layout.k, int64_t{head} * K + c) * k_rnorm;
  }
  apply_token(problem, decay, k, u, state);
}

void commit_unit(const Problem& problem, const Rows& rows, int64_t row, int value_head, const Path& path,
                 int64_t record_row, const CommitTarget& target, float* state) {
  load_or_zero(problem, target.state, target.layer, source_slot(rows, row), value_head, state);
  if (path.count == 0) return;
  const std::byte* record = target.records.layer_base(target.layer) + record_row * target.records.row_stride;
  const StateSnapshots& snapshots = target.snapshots;
  for (int i = 0; i < path.count; ++i) {
    if (i > 0) pass_through_pool(problem, state);
    replay_node(problem, record, path.nodes[i], value_head, state);
    for (int64_t s = 0; s < snapshots.count(); ++s) {
      if (snapshots.rows.at(s) != row || snapshots.positions.at(s) != path.nodes[i]) continue;
      const int64_t slot = snapshots.slots.at(s);
      if (is_skipped(problem, slot, snapshots.pool, target.state)) continue;
      store_state(problem, state, unit_place(problem, snapshots.pool, target.layer, slot, value_head));
    }
  }
  const int64_t slot = final_slot(problem, rows, row, target.dst, target.state);
  const StatePool& pool = planted(Fault::dst_ignored) ? target.state : target.dst;
  if (slot != kNoSlot) store_state(problem, state, unit_place(problem, pool, target.layer, slot, value_head));
  pass_through_pool(problem, state);
}

}  // namespace reference

Status reference_commit(const Problem& problem, const CommitLaunch& launch, const Execution& execution) {
  float* state = reinterpret_cast<float*>(execution.workspace);
  const RecordLayout layout = record_layout(problem);
  for (int layer = 0; layer < launch.layers; ++layer) {
    const CommitTarget target{launch.state, launch.dst, launch.snapshots, launch.records, layer};
    for (int64_t row = 0; row < launch.rows.count; ++row) {
      if (is_null(problem, launch.rows, row)) continue;
      const int64_t tip = launch.tips.at(row), record_row = committed_record_row_of(launch.record_rows, row);
      if (tip < 0 || record_row < 0) {
        const int64_t source = source_slot(launch.rows, row);
        const int64_t slot = final_slot(problem, launch.rows, row, launch.dst, launch.state);
        if (launch.rows.dst_slots.present() || planted(Fault::commit_tip_minus_one_stores))
          carry_state(problem, launch.state, source, launch.dst, slot, layer);
        continue;
      }
      const std::byte* record = launch.records.layer_base(layer) + record_row * launch.records.row_stride;
      Path path;
      if (!read_path(problem, layout, kRecordMagic, record, tip, execution, &path)) continue;
      for (int hv = 0; hv < problem.value_heads; ++hv)
        commit_unit(problem, launch.rows, row, hv, path, record_row, target, state);
    }
  }
  return KDA_OK;
}

}  // namespace kda
