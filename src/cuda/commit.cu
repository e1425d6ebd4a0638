#include "cuda/check_values.h"
#include "cuda/device/commit.cuh"
#include "cuda/host.h"
#include "cuda/kernels.h"

namespace kda {

using namespace cuda;

namespace {

template <class T, StateLayout Layout, int KP, int R, bool General>
Status launch_as(const Problem& p, CommitArgs& args, int layers, const Execution& execution) {
  constexpr int kBlockRows = SequenceShared<KP, R, kCommitWarps>::kBlockRows;
  args.splits = (p.value_dim + kBlockRows - 1) / kBlockRows;
  return launch<commit_kernel<T, Layout, KP, R, General>, true>(args.rows.count * p.value_heads * args.splits, layers,
                                                                kCommitThreads, 0, execution, args);
}

template <class T>
Status launch_commit(const Problem& p, CommitArgs& args, int layers, const Execution& execution) {
  const int padded = padded_key_dim(p.key_dim);
  if (p.state_layout == StateLayout::kv) {
    if (padded <= 128) return launch_as<T, StateLayout::kv, 128, 4, true>(p, args, layers, execution);
    return launch_as<T, StateLayout::kv, 256, 4, true>(p, args, layers, execution);
  }
  const bool plain = p.key_dim == padded && p.value_dim % 64 == 0 && !args.snapshots.rows.present() &&
                     args.dst.dtype == p.state && (!args.state.present() || is_aligned(args.state)) &&
                     (!args.dst.present() || is_aligned(args.dst));
  if (padded == 64 && plain) return launch_as<T, StateLayout::vk, 64, 4, false>(p, args, layers, execution);
  if (padded <= 128) {
    if (plain && padded == 128) return launch_as<T, StateLayout::vk, 128, 4, false>(p, args, layers, execution);
    return launch_as<T, StateLayout::vk, 128, 2, true>(p, args, layers, execution);
  }
  return launch_as<T, StateLayout::vk, 256, 2, true>(p, args, layers, execution);
}

}  // namespace

Status cuda_commit(const Problem& p, const CommitLaunch& l, const Execution& execution) {
  const bool fast = p.verify_numerics == Numerics::fast;
  CommitArgs args{};
  args.rows = l.rows;
  args.tips = l.tips;
  args.state = l.state;
  args.dst = l.rows.dst_slots.present() ? l.dst : l.state;
  if (!args.dst.present()) args.dst.dtype = p.state;
  args.records = l.records;
  args.record_rows = l.record_rows;
  args.snapshots = l.snapshots;
  args.form = make_form(p, has_half_decay(p), !fast);
  args.record_layout = record_layout(p);
  args.status = execution.device_status;
  if (p.check_values) {
    if (const Status s = check_written_slots(l.rows, args.state, args.dst, p.null_slot0, execution)) return s;
  }
  return p.state == DType::bf16 ? launch_commit<__nv_bfloat16>(p, args, l.layers, execution)
                                : launch_commit<float>(p, args, l.layers, execution);
}

}  // namespace kda
