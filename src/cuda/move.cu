#include "cuda/check_values.h"
#include "cuda/device/move.cuh"
#include "cuda/host.h"
#include "cuda/kernels.h"

namespace kda {

using namespace cuda;

namespace {

constexpr int kCheckThreads = 128;

template <class Pool>
Status check_rows(const Rows& rows, const Pool& state, const Pool& dst, bool null_slot0, const Execution& execution) {
  if (rows.count == 0 || execution.device_status == nullptr) return KDA_OK;
  const unsigned blocks = static_cast<unsigned>((rows.count + kCheckThreads - 1) / kCheckThreads);
  list_kernel<check_rows_kernel<Pool>>();
  check_rows_kernel<Pool><<<blocks, kCheckThreads, 0, static_cast<cudaStream_t>(execution.stream)>>>(
      rows, state, dst, null_slot0, execution.device_status);
  return cudaGetLastError() == cudaSuccess ? KDA_OK : KDA_E_CUDA_DEVICE;
}

template <class Pool>
Status run_move(const Problem& p, MoveArgs<Pool>& args, int layers, const Execution& execution) {
  const int64_t entries = args.source_slots.count;
  if (entries == 0 || layers == 0) return KDA_OK;
  int64_t piece = kMoveSharedBytes / (entries * args.unit_bytes);
  if (piece == 0) return KDA_E_PLAN_LIMIT;  // more entries than a block can hold one unit of
  if (piece > args.slot_units) piece = args.slot_units;
  args.piece = static_cast<int>(piece);
  args.null_slot0 = p.null_slot0;
  args.status = execution.device_status;
  if (p.check_values && args.status != nullptr) {
    const unsigned blocks = static_cast<unsigned>((entries + kCheckThreads - 1) / kCheckThreads);
    list_kernel<check_moves_kernel<Pool>>();
    check_moves_kernel<Pool><<<blocks, kCheckThreads, 0, static_cast<cudaStream_t>(execution.stream)>>>(args);
  }
  return launch<move_kernel<Pool>>((args.slot_units + piece - 1) / piece, layers, kMoveThreads,
                                   entries * piece * args.unit_bytes, execution, args);
}

}  // namespace

namespace cuda {

Status check_written_slots(const Rows& rows, const StatePool& state, const StatePool& dst, bool null_slot0,
                           const Execution& execution) {
  return check_rows(rows, state, dst, null_slot0, execution);
}
Status check_written_slots(const Rows& rows, const ConvPool& state, const ConvPool& dst, bool null_slot0,
                           const Execution& execution) {
  return check_rows(rows, state, dst, null_slot0, execution);
}

}  // namespace cuda

Status cuda_move(const Problem& p, const MoveLaunch& l, const Execution& execution) {
  MoveArgs<StatePool> args{};
  args.source = l.source;
  args.destination = l.destination;
  args.source_slots = l.source_slots;
  args.destination_slots = l.destination_slots;
  const int64_t slot_bytes = p.slot_elements() * size_of(l.source.dtype);
  const bool wide = l.source.dtype == l.destination.dtype && is_aligned(l.source) && is_aligned(l.destination) &&
                    slot_bytes % 16 == 0 && kMoveSharedBytes / 16 >= l.source_slots.count;
  args.unit_bytes = wide ? 16 : static_cast<int>(size_of(l.source.dtype));
  args.slot_units = slot_bytes / args.unit_bytes;
  return run_move(p, args, l.layers, execution);
}

Status cuda_conv_move(const Problem& p, const ConvMoveLaunch& l, const Execution& execution) {
  MoveArgs<ConvPool> args{};
  args.source = l.source;
  args.destination = l.destination;
  args.source_slots = l.source_slots;
  args.destination_slots = l.destination_slots;
  args.channels = l.channels;
  args.unit_bytes = static_cast<int>(size_of(l.source.dtype));
  args.slot_units = (p.conv_width - 1) * l.channels;
  return run_move(p, args, l.layers, execution);
}

}  // namespace kda
