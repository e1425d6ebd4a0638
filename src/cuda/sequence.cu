// Registry functions of extend and verify by the exact recurrence.
#include "cuda/check_values.h"
#include "cuda/kernels.h"
#include "cuda/sequence_launch.h"
#include "cuda/verify_args.h"

namespace kda {

using namespace cuda;

namespace {

Status launch_by_tile(const Problem& p, SequenceArgs& args, const Execution& execution) {
  if (p.state == DType::fp32) return launch_sequence_fp32(p, args, execution);
  return args.form.round_steps ? launch_sequence_rounded(p, args, execution) : launch_sequence_bf16(p, args, execution);
}

Status run_verify(const Problem& p, const VerifyLaunch& l, const Execution& execution) {
  SequenceArgs args = verify_args(p, l, execution);
  if (const Status s = check_verify(p, l, args, execution)) return s;
  return launch_by_tile(p, args, execution);
}

}  // namespace

namespace cuda {

SequenceArgs verify_args(const Problem& p, const VerifyLaunch& l, const Execution& execution) {
  const bool fast = p.verify_numerics == Numerics::fast;
  SequenceArgs args{};
  args.tokens = l.tokens;
  args.rows = l.rows;
  args.state = l.state;
  args.dst = l.rows.dst_slots.present() ? l.dst : l.state;
  args.snapshots = l.pending.present() ? l.pending_snapshots : StateSnapshots{};
  args.form = make_form(p, has_half_decay(p), !fast);
  args.record_layout = record_layout(p);
  args.verify = true;
  args.draft = l.draft;
  args.records = l.records;
  args.record_rows = l.record_rows;
  args.node_states = l.node_states;
  args.node_states_dtype = l.node_states_dtype;
  args.node_states_rows = l.node_states_rows;
  args.node_states_nodes = l.node_states_nodes;
  args.node_states_row_stride = l.node_states_row_stride;
  args.node_states_node_stride = l.node_states_node_stride;
  args.node_slots = l.node_slots;
  args.node_pool = l.node_pool;
  args.pending = l.pending;
  args.status = execution.device_status;
  return args;
}

Status check_verify(const Problem& p, const VerifyLaunch& l, const SequenceArgs& args, const Execution& execution) {
  if (!p.check_values || !l.pending.present()) return KDA_OK;
  return check_written_slots(l.rows, args.state, args.dst, p.null_slot0, execution);
}

}  // namespace cuda

Status cuda_extend(const Problem& p, const ExtendLaunch& l, const Execution& execution) {
  SequenceArgs args{};
  args.tokens = l.tokens;
  args.rows = l.rows;
  args.state = l.state;
  args.dst = l.rows.dst_slots.present() ? l.dst : l.state;
  args.snapshots = l.snapshots;
  args.form = make_form(p, false, false);
  args.stepped_positions = p.extend_numerics == Numerics::fast;
  args.status = execution.device_status;
  if (!args.dst.present()) args.dst.dtype = p.state;
  if (p.check_values) {
    if (const Status s = check_written_slots(l.rows, args.state, args.dst, p.null_slot0, execution)) return s;
  }
  return launch_by_tile(p, args, execution);
}

Status cuda_verify(const Problem& p, const VerifyLaunch& l, const Execution& execution) {
  return run_verify(p, l, execution);
}

Status cuda_verify_pending(const Problem& p, const VerifyLaunch& l, const Execution& execution) {
  return run_verify(p, l, execution);
}

}  // namespace kda
