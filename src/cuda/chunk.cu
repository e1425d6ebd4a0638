// Registry function of fast extend in chunks; its workspace is in workspace.cpp.
#include "cuda/check_values.h"
#include "cuda/chunk.h"
#include "cuda/host.h"
#include "cuda/kernels.h"

namespace kda {

using namespace cuda;

namespace cuda::chunk {
namespace {

// Which rows the chunks of a call belong to; a block a row.
__global__ void __launch_bounds__(128) number_chunks_kernel(const __grid_constant__ Args a) {
  wait_for_previous_kernel();
  const int64_t n = blockIdx.x;
  uint32_t ignored = 0;
  const RowRange range = resolve_range(a.rows, n, INT64_MAX, ignored);
  if (range.bad) return;
  int32_t* const own = a.row_of + first_chunk(range, n);
  for (int64_t i = threadIdx.x; i < chunks_of(range); i += blockDim.x) own[i] = static_cast<int32_t>(n);
}

}  // namespace

}  // namespace cuda::chunk

Status cuda_extend_chunks(const Problem& p, const ExtendLaunch& l, const Execution& execution) {
  chunk::Args args{};
  args.tokens = l.tokens;
  args.rows = l.rows;
  args.state = l.state;
  args.dst = l.rows.dst_slots.present() ? l.dst : l.state;
  args.snapshots = l.snapshots;
  args.form = make_form(p, false, false);
  args.kv = p.state_layout == StateLayout::kv;
  const auto aligned = [](const TokenView& v, int64_t bytes) {
    const int64_t elements = bytes / size_of(v.dtype);
    return reinterpret_cast<uintptr_t>(v.data) % static_cast<uintptr_t>(bytes) == 0 && v.token_stride % elements == 0 &&
           v.head_stride % elements == 0;
  };
  args.aligned_inputs = aligned(l.tokens.q, 16) && aligned(l.tokens.k, 16) && aligned(l.tokens.a, 16);
  args.aligned_values = aligned(l.tokens.v, 16);
  args.aligned_out = aligned(l.tokens.out, 8);
  args.row_of = reinterpret_cast<int32_t*>(execution.workspace);
  args.packets = execution.workspace + chunk::workspace_of(p).packets_at;
  args.status = execution.device_status;
  if (!args.dst.present()) args.dst.dtype = p.state;
  if (p.check_values) {
    if (const Status s = check_written_slots(l.rows, args.state, args.dst, p.null_slot0, execution)) return s;
  }
  if (args.rows.count > 1) {
    if (const Status s = launch<chunk::number_chunks_kernel, true>(args.rows.count, 1, 128, 0, execution, args))
      return s;
  }
  return p.key_dim == 64 ? chunk::launch_chunks_64(p, args, execution) : chunk::launch_chunks_128(p, args, execution);
}

}  // namespace kda
