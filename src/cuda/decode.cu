#include "cuda/check_values.h"
#include "cuda/device/decode.cuh"
#include "cuda/host.h"
#include "cuda/kernels.h"

namespace kda {

using namespace cuda;

namespace {

template <class Tile, int W, int Blocks, class Io>
Status launch_as(const Problem& p, DecodeArgs& args, const Execution& execution) {
  constexpr int kBlockRows = W * Tile::kRows;
  const int64_t splits = (p.value_dim + kBlockRows - 1) / kBlockRows;
  args.grid = {Divisor(splits), Divisor(p.value_heads)};
  return launch<decode_kernel<Tile, W, Blocks, Io>, true>(args.rows.count * p.value_heads * splits, 1, W * kWarp, 0,
                                                          execution, args);
}

// The pool's form of tile.
template <class T, StateLayout Layout, int KP, int R, bool AnyMemory>
using TileOf =
    std::conditional_t<sizeof(T) == 2, RoundedTile<Layout, KP, R, AnyMemory>, StateTile<T, Layout, KP, R, AnyMemory>>;

template <class T>
Status launch_decode(const Problem& p, DecodeArgs& args, const Execution& execution) {
  const int padded = padded_key_dim(p.key_dim);
  if (p.state_layout == StateLayout::kv) {
    if (padded <= 128) return launch_as<TileOf<T, StateLayout::kv, 128, 4, true>, 4, 3, AnyIo>(p, args, execution);
    return launch_as<TileOf<T, StateLayout::kv, 256, 4, true>, 4, 2, AnyIo>(p, args, execution);
  }
  const bool plain = args.dst.dtype == p.state && (!args.state.present() || is_aligned(args.state)) &&
                     (!args.dst.present() || is_aligned(args.dst));
  using Tuned = FixedIo<DType::bf16>;
  if (padded == 64 && plain && is_fixed_bf16(p, args.tokens, 64))
    return launch_as<TileOf<T, StateLayout::vk, 64, 2, false>, 4, 8, Tuned>(p, args, execution);
  if (padded <= 128) {
    if (plain && padded == 128 && is_fixed_bf16(p, args.tokens, 64))
      return launch_as<TileOf<T, StateLayout::vk, 128, 2, false>, 2, 12, Tuned>(p, args, execution);
    return launch_as<TileOf<T, StateLayout::vk, 128, 2, true>, 4, 5, AnyIo>(p, args, execution);
  }
  return launch_as<TileOf<T, StateLayout::vk, 256, 2, true>, 4, 3, AnyIo>(p, args, execution);
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
