#include <algorithm>

#include "cuda/check_values.h"
#include "cuda/device/conv.cuh"
#include "cuda/host.h"
#include "cuda/kernels.h"

namespace kda {

using namespace cuda;

namespace {

constexpr int64_t kConvBlocksWanted = 2048;  // enough to fill the largest GPU several times
constexpr int64_t kConvSliceTokens = 16;     // a slice is not worth a block below this

ConvArgs conv_args(const Problem& p, const ConvLaunch& l, const Execution& execution) {
  ConvArgs args{};
  args.launch = l;
  if (!l.rows.dst_slots.present()) args.launch.dst = l.state;
  args.width = p.conv_width;
  args.null_slot0 = p.null_slot0;
  args.single_root = p.single_root;
  args.max_nodes = p.max_nodes;
  args.slices = 1;
  args.channel_blocks = static_cast<int>((l.channels + kConvThreads - 1) / kConvThreads);
  args.record_layout = conv_record_layout(p, l.channels);
  args.status = execution.device_status;
  return args;
}

Status run_sequence(const Problem& p, ConvArgs& args, const Execution& execution) {
  const ConvLaunch& l = args.launch;
  if (p.check_values) {
    if (const Status s = check_written_slots(l.rows, l.state, l.dst, p.null_slot0, execution)) return s;
  }
  return launch<conv_sequence_kernel>(l.rows.count * args.slices * args.channel_blocks, 1, kConvThreads, 0, execution,
                                      args);
}

Status run_verify(const Problem& p, const ConvLaunch& l, const Execution& execution) {
  ConvArgs args = conv_args(p, l, execution);
  if (p.check_values && l.pending.present()) {
    if (const Status s = check_written_slots(l.rows, args.launch.state, args.launch.dst, p.null_slot0, execution)) {
      return s;
    }
  }
  return launch<conv_verify_kernel>(l.rows.count * args.channel_blocks, 1, kConvThreads, 0, execution, args);
}

}  // namespace

Status cuda_conv_extend(const Problem& p, const ConvLaunch& l, const Execution& execution) {
  ConvArgs args = conv_args(p, l, execution);
  const int64_t blocks = std::max<int64_t>(l.rows.count * args.channel_blocks, 1);
  const int64_t most = std::max<int64_t>(l.rows.tokens / kConvSliceTokens, 1);
  args.slices = static_cast<int>(std::clamp<int64_t>(kConvBlocksWanted / blocks, 1, most));
  return run_sequence(p, args, execution);
}

Status cuda_conv_decode(const Problem& p, const ConvLaunch& l, const Execution& execution) {
  ConvArgs args = conv_args(p, l, execution);
  args.decode = true;
  return run_sequence(p, args, execution);
}

Status cuda_conv_verify(const Problem& p, const ConvLaunch& l, const Execution& execution) {
  return run_verify(p, l, execution);
}

Status cuda_conv_verify_pending(const Problem& p, const ConvLaunch& l, const Execution& execution) {
  return run_verify(p, l, execution);
}

Status cuda_conv_commit(const Problem& p, const ConvCommitLaunch& l, const Execution& execution) {
  ConvCommitArgs args{};
  args.launch = l;
  if (!l.rows.dst_slots.present()) args.launch.dst = l.state;
  args.width = p.conv_width;
  args.null_slot0 = p.null_slot0;
  args.max_nodes = p.max_nodes;
  args.channel_blocks = static_cast<int>((l.channels + kConvThreads - 1) / kConvThreads);
  args.io = p.io;
  args.record_layout = conv_record_layout(p, l.channels);
  args.status = execution.device_status;
  if (p.check_values) {
    if (const Status s = check_written_slots(l.rows, l.state, args.launch.dst, p.null_slot0, execution)) return s;
  }
  return launch<conv_commit_kernel>(l.rows.count * args.channel_blocks, l.layers, kConvThreads, 0, execution, args);
}

}  // namespace kda
