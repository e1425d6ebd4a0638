#include "cuda/check_values.h"
#include "cuda/device/commit.cuh"
#include "cuda/host.h"
#include "cuda/kernels.h"

namespace kda {

using namespace cuda;

namespace {

template <class Tile, int Blocks, bool General>
Status launch_as(const Problem& p, CommitArgs& args, int layers, const Execution& execution) {
  constexpr int W = 4, kBlockRows = W * Tile::kRows;
  const int64_t splits = (p.value_dim + kBlockRows - 1) / kBlockRows;
  args.grid = {Divisor(splits), Divisor(p.value_heads)};
  return launch<commit_kernel<Tile, W, Blocks, General>, true>(args.rows.count * p.value_heads * splits, layers,
                                                               W * kWarp, 0, execution, args);
}

// TileOf<Layout, KP, R, AnyMemory>
template <template <StateLayout, int, int, bool> class TileOf>
Status launch_commit(const Problem& p, CommitArgs& args, int layers, const Execution& execution) {
  constexpr auto vk = StateLayout::vk, kv = StateLayout::kv;
  const int padded = padded_key_dim(p.key_dim);
  if (p.state_layout == kv) {
    if (padded <= 128) return launch_as<TileOf<kv, 128, 4, true>, 3, true>(p, args, layers, execution);
    return launch_as<TileOf<kv, 256, 4, true>, 1, true>(p, args, layers, execution);
  }
  const bool plain = p.key_dim == padded && p.value_dim % 64 == 0 && !args.snapshots.rows.present() &&
                     args.dst.dtype == p.state && (!args.state.present() || is_aligned(args.state)) &&
                     (!args.dst.present() || is_aligned(args.dst));
  if (padded == 64 && plain) return launch_as<TileOf<vk, 64, 2, false>, 6, false>(p, args, layers, execution);
  if (padded <= 128) {
    if (plain && padded == 128) return launch_as<TileOf<vk, 128, 2, false>, 7, false>(p, args, layers, execution);
    return launch_as<TileOf<vk, 128, 2, true>, 3, true>(p, args, layers, execution);
  }
  return launch_as<TileOf<vk, 256, 2, true>, 2, true>(p, args, layers, execution);
}

template <StateLayout Layout, int KP, int R, bool AnyMemory>
using Fp32Tile = StateTile<float, Layout, KP, R, AnyMemory>;
template <StateLayout Layout, int KP, int R, bool AnyMemory>
using Bf16Tile = StateTile<__nv_bfloat16, Layout, KP, R, AnyMemory>;

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
  if (p.state == DType::fp32) return launch_commit<Fp32Tile>(p, args, l.layers, execution);
  return args.form.round_steps ? launch_commit<RoundedTile>(p, args, l.layers, execution)
                               : launch_commit<Bf16Tile>(p, args, l.layers, execution);
}

}  // namespace kda
