#include "cuda/check_values.h"
#include "cuda/device/decode.cuh"
#include "cuda/host.h"
#include "cuda/kernels.h"

namespace kda {

using namespace cuda;

namespace {

// From this many units on (rows times value heads of the plan) a warp takes 16 rows of a bf16 pool, else 8.
constexpr int64_t kManyDecodeUnits = 96;

template <class T, StateLayout Layout, int KP, int R, class Io>
Status launch_as(const Problem& p, DecodeArgs& args, const Execution& execution) {
  constexpr int kBlockRows = kDecodeWarps * 4 * R;
  args.splits = (p.value_dim + kBlockRows - 1) / kBlockRows;
  return launch<decode_kernel<T, Layout, KP, R, Io>, true>(args.rows.count * p.value_heads * args.splits, 1,
                                                           kDecodeWarps * kWarp, 0, execution, args);
}

template <class T>
Status launch_decode(const Problem& p, DecodeArgs& args, const Execution& execution) {
  const int padded = padded_key_dim(p.key_dim);
  if (p.state_layout == StateLayout::kv) {
    if (padded <= 128) return launch_as<T, StateLayout::kv, 128, 4, AnyIo>(p, args, execution);
    return launch_as<T, StateLayout::kv, 256, 4, AnyIo>(p, args, execution);
  }
  const bool plain = args.dst.dtype == p.state && (!args.state.present() || is_aligned(args.state)) &&
                     (!args.dst.present() || is_aligned(args.dst));
  const bool many = p.max_rows * p.value_heads >= kManyDecodeUnits;
  if (padded == 64 && plain && is_fixed_bf16(p, args.tokens, 64))
    return launch_as<T, StateLayout::vk, 64, 4, FixedIo<DType::bf16>>(p, args, execution);
  if (padded <= 128) {
    const bool fixed = plain && padded == 128 && is_fixed_bf16(p, args.tokens, 64);
    // measured: with 2 rows a lane fp32 pools stream best, with 4 bf16 pools, whose rows are half as long
    if (fixed && many && sizeof(T) == 2)
      return launch_as<T, StateLayout::vk, 128, 4, FixedIo<DType::bf16>>(p, args, execution);
    if (fixed) return launch_as<T, StateLayout::vk, 128, 2, FixedIo<DType::bf16>>(p, args, execution);
    return launch_as<T, StateLayout::vk, 128, 2, AnyIo>(p, args, execution);
  }
  return launch_as<T, StateLayout::vk, 256, 2, AnyIo>(p, args, execution);
}

}  // namespace

Status cuda_decode(const Problem& p, const DecodeLaunch& l, const Execution& execution) {
  DecodeArgs args{};
  args.tokens = l.tokens;
  args.rows = l.rows;
  args.state = l.state;
  args.dst = l.rows.dst_slots.present() ? l.dst : l.state;
  if (!args.dst.present()) args.dst.dtype = p.state;
  args.form = make_form(p, false, false);
  args.status = execution.device_status;
  if (p.check_values) {
    if (const Status s = check_written_slots(l.rows, args.state, args.dst, p.null_slot0, execution)) return s;
  }
  return p.state == DType::bf16 ? launch_decode<__nv_bfloat16>(p, args, execution)
                                : launch_decode<float>(p, args, execution);
}

}  // namespace kda
