// Verify: the nodes of a draft from the row's committed state, each from its parent's state; before that, where tips
// are pending, the commit of the last round.
#include "reference/kernels.h"
#include "reference/records.h"

namespace kda {

using namespace reference;

namespace {

struct Row {
  int64_t index, begin, nodes;
  int64_t record_row;  // negative = write no record
  int parents[kMaxDraftNodes];
  int64_t pending_record_row;
  Path pending;
};

// False: the pending commit names a record that does not match, so the row is skipped.
bool read_row(const Problem& problem, const VerifyLaunch& launch, int64_t index, const Execution& execution, Row* row) {
  row->index = index;
  row->begin = token_begin(launch.rows, index);
  row->nodes = token_end(launch.rows, index) - row->begin;
  row->record_row = record_row_of(launch.record_rows, index);
  for (int64_t node = 0; node < row->nodes; ++node)
    row->parents[node] = static_cast<int>(parent_of(problem, launch.draft, row->begin, index, node));
  row->pending = {};
  if (!launch.pending.present() || planted(Fault::pending_not_applied)) return true;
  const int64_t tip = launch.pending.tips.at(index);
  row->pending_record_row = committed_record_row_of(launch.pending.record_rows, index);
  if (tip < 0 || row->pending_record_row < 0) return true;
  const std::byte* record = launch.records.base + row->pending_record_row * launch.records.row_stride;
  return read_path(problem, record_layout(problem), kRecordMagic, record, tip, execution, &row->pending);
}

void store_node(const Problem& problem, const VerifyLaunch& launch, const Row& row, int64_t node, int value_head,
                const float* state) {
  if (launch.node_states != nullptr && row.record_row >= 0) {
    const int64_t begin = row.record_row * launch.node_states_row_stride + node * launch.node_states_node_stride;
    store_state(problem, state, unit_place(problem, launch.node_states, launch.node_states_dtype, begin, value_head));
  }
  if (launch.node_slots.present()) {
    const int64_t slot = launch.node_slots.at(row.index, node);
    if (!is_skipped(problem, slot, launch.node_pool, launch.state))
      store_state(problem, state, unit_place(problem, launch.node_pool, 0, slot, value_head));
  }
}

// `states`: the committed state, then one state per node, [V, K] each.
void run_unit(const Problem& problem, const VerifyLaunch& launch, const Row& row, int value_head, float* states) {
  const int64_t unit = int64_t{problem.value_dim} * problem.key_dim;
  const CommitTarget target{launch.state, launch.dst, launch.pending_snapshots, launch.records, 0};
  commit_unit(problem, launch.rows, row.index, value_head, row.pending, row.pending_record_row, target, states);
  std::byte* record = launch.records.present() && row.record_row >= 0
                          ? launch.records.base + row.record_row * launch.records.row_stride
                          : nullptr;
  TokenTerms terms;
  float u[kMaxHeadDim];
  for (int64_t node = 0; node < row.nodes; ++node) {
    float* state = states + (node + 1) * unit;
    float* parent = states + (row.parents[node] + 1) * unit;
    std::copy_n(parent, unit, state);
    token_terms(problem, launch.tokens, row.begin + node, row.begin, value_head, &terms);
    step(problem, terms, state, u);
    write_out(problem, launch.tokens, row.begin + node, value_head, terms, state);
    store_node(problem, launch, row, node, value_head, state);
    if (record != nullptr)
      write_record_node(problem, record, node, value_head, launch.tokens, row.begin + node, terms, u);
    pass_through_pool(problem, state);
    if (planted(Fault::sibling_leak)) std::copy_n(state, unit, parent);
  }
}

}  // namespace

int64_t reference_verify_workspace(const Problem& problem) {
  return reference_state_workspace(problem) * (int64_t{problem.max_nodes} + 1);
}

Status reference_verify(const Problem& problem, const VerifyLaunch& launch, const Execution& execution) {
  float* states = reinterpret_cast<float*>(execution.workspace);
  const RecordLayout layout = record_layout(problem);
  for (int64_t index = 0; index < launch.rows.count; ++index) {
    Row row;
    if (is_null(problem, launch.rows, index) || !read_row(problem, launch, index, execution, &row)) {
      write_zero_out(problem, launch.tokens, token_begin(launch.rows, index), token_end(launch.rows, index));
      continue;
    }
    for (int hv = 0; hv < problem.value_heads; ++hv) run_unit(problem, launch, row, hv, states);
    if (launch.records.present() && row.record_row >= 0) {
      std::byte* record = launch.records.base + row.record_row * launch.records.row_stride;
      write_header(record, kRecordMagic, layout.version_form, layout.geometry, row.nodes);
      for (int64_t node = 0; node < row.nodes; ++node) write_parent(record, node, row.parents[node]);
    }
    if (launch.pending.present() && row.pending.count == 0 && launch.rows.dst_slots.present()) {
      carry_state(problem, launch.state, source_slot(launch.rows, index), launch.dst,
                  final_slot(problem, launch.rows, index, launch.dst, launch.state), 0);
    }
  }
  return KDA_OK;
}

Status reference_verify_pending(const Problem& problem, const VerifyLaunch& launch, const Execution& execution) {
  return reference_verify(problem, launch, execution);
}

}  // namespace kda
