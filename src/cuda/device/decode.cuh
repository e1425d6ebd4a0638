// Decode: one token a row. Every warp works alone on 4*R rows of one head's state: all its loads are in flight before
// the token is prepared, and nothing waits for another warp.
#pragma once

#include "cuda/device/rows.cuh"
#include "cuda/device/tile.cuh"

namespace kda::cuda {

constexpr int kDecodeWarps = 4;

struct DecodeArgs {
  TokenInputs tokens;
  Rows rows;
  StatePool state, dst;
  Form form;
  int splits;
  uint32_t* status;
};

// AnyIo also means pools of any alignment and a destination of another dtype.
template <class T, StateLayout Layout, int KP, int R, class Io>
__global__ void __launch_bounds__(kDecodeWarps* kWarp, R* KP >= 1024   ? 2
                                                       : R * KP >= 512 ? 4
                                                       : Io::kFixed    ? 6
                                                                       : 5)
    decode_kernel(const __grid_constant__ DecodeArgs a) {
  using Tile = StateTile<T, Layout, KP, R, !Io::kFixed>;
  constexpr int kBlockRows = kDecodeWarps * Tile::kRows;
  __shared__ __align__(16) float shared[kDecodeWarps][TokenVectors<KP>::kFloats];
  wait_for_previous_kernel();
  const Form& f = a.form;
  const int warp = threadIdx.x / kWarp, j = Tile::lane_in_group();
  const int split = static_cast<int>(blockIdx.x % a.splits);
  const int64_t unit = blockIdx.x / a.splits;
  const int64_t n = unit / f.HV;
  const int hv = static_cast<int>(unit % f.HV);
  const int warp_row = split * kBlockRows + warp * Tile::kRows;
  const bool reporter = hv == 0 && split == 0 && threadIdx.x == 0;
  if (warp_row >= f.V) return;
  const int v0 = Tile::first_row(warp_row);
  const int row = v0 + j % R;

  uint32_t bits = 0;
  const RowRange range = resolve_range(a.rows, n, 1, bits);
  if (range.bad) {
    if (reporter) raise_status(a.status, bits);
    return;
  }
  const int64_t t = range.begin;
  TokenLoads<Io, KP> loads;
  uint32_t raw_v = 0;
  if (range.count > 0) {
    loads.load(a.tokens, f, t, hv);
    if (row < f.V) {
      raw_v = load_element_raw(a.tokens.v.data, Io::token(a.tokens.v.dtype),
                               t * a.tokens.v.token_stride + hv * a.tokens.v.head_stride + row);
    }
  }
  const RowTarget target = resolve_target(a.rows, a.state, a.dst, f.null_slot0, n, bits);
  if (reporter) raise_status(a.status, bits);
  const int64_t out = t * a.tokens.out.token_stride + hv * a.tokens.out.head_stride + row;
  const bool writes_out = j < R && row < f.V && range.count > 0;
  if (target.null) {
    if (writes_out) store_element(a.tokens.out.data, Io::token(a.tokens.out.dtype), out, 0.0f);
    return;
  }
  auto head_of = [&](const StatePool& pool, int64_t slot) {
    return slot_address(pool, pool.base, slot) + hv * int64_t{f.K} * f.V * (pool.dtype == DType::fp32 ? 4 : 2);
  };
  if (range.count == 0 && (target.dst < 0 || (target.in_place && target.slot >= 0))) return;

  Tile tile;
  if (target.slot >= 0) {
    tile.load(head_of(a.state, target.slot), f, v0);
  } else {
    tile.zero();
  }
  if (range.count > 0) {
    const TokenVectors<KP> token{shared[warp]};
    finish_token<Io, KP, Tile::Vec>(loads, a.tokens, f, token, {});
    __syncwarp();
    float p[R], w[R], u[R], k[Tile::E];
    tile.template decay_and_dot<true>(token, p, w, k);
    const float row_p = sum_rows<R>(p, tile.j), row_w = sum_rows<R>(w, tile.j);
    const RowResult result =
        finish_row(token, to_float(raw_v, Io::token(a.tokens.v.dtype)), row_p, row_w, a.tokens.scale);
    spread_rows<R>(result.u, u);
    tile.add_outer(k, u);
    if (writes_out) store_element(a.tokens.out.data, Io::token(a.tokens.out.dtype), out, result.out);
  }
  if (target.dst >= 0) tile.store(head_of(a.dst, target.dst), a.dst.dtype, f, v0);
}

}  // namespace kda::cuda
