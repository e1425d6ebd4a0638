// Decode: one token a row. A block takes rows of one head's state: all its loads are in flight before its first warp
// prepares the token for all of them.
#pragma once

#include "cuda/device/rows.cuh"
#include "cuda/device/tile.cuh"

namespace kda::cuda {

struct DecodeArgs {
  TokenInputs tokens;
  Rows rows;
  StatePool state, dst;
  Form form;
  BlockGrid grid;
  uint32_t* status;
};

// AnyIo also means pools of any alignment and a destination of another dtype. W warps; at least Blocks of these blocks
// share a multiprocessor.
template <class Tile, int W, int Blocks, class Io>
__global__ void __launch_bounds__(W* kWarp, Blocks) decode_kernel(const __grid_constant__ DecodeArgs a) {
  constexpr int KP = Tile::KP, R = Tile::R;
  constexpr int kBlockRows = W * Tile::kRows;
  __shared__ __align__(16) float vectors[Tile::Vectors::kFloats];
  wait_for_previous_kernel();
  const Form& f = a.form;
  const int warp = threadIdx.x / kWarp;
  const auto [n, hv, split] = block_place(a.grid);
  const bool reporter = hv == 0 && split == 0 && threadIdx.x == 0;
  const int v0 = Tile::first_row(split * kBlockRows + warp * Tile::kRows);

  const RowIndices indices = load_row_indices(a.rows, n);
  uint32_t bits = 0;
  const RowRange range = resolve_range(a.rows, n, 1, bits);
  if (range.bad) {
    if (reporter) raise_status(a.status, bits);
    return;
  }
  const int64_t t = range.begin;
  Tile tile;
  const int row = v0 + tile.j % R;
  const bool owns_row = tile.j < R && (Io::kFixed || row < f.V) && range.count > 0;
  TokenLoads<Io, KP> loads;
  uint32_t raw_v = 0;
  if (range.count > 0) {
    if (warp == 0) loads.load(a.tokens, f, t, hv);
    if (owns_row) {
      raw_v = load_element_raw(a.tokens.v.data, Io::token(a.tokens.v.dtype),
                               t * a.tokens.v.token_stride + hv * a.tokens.v.head_stride + row);
    }
  }
  const RowTarget target =
      resolve_target(indices, present(a.rows.slots), present(a.rows.dst_slots), a.state, a.dst, f.null_slot0, bits);
  if (reporter) raise_status(a.status, bits);
  const int64_t out = t * a.tokens.out.token_stride + hv * a.tokens.out.head_stride + row;
  if (target.null) {
    if (owns_row) store_element(a.tokens.out.data, Io::token(a.tokens.out.dtype), out, 0.0f);
    return;
  }
  auto head_of = [&](const StatePool& pool, int64_t slot) {
    return slot_address(pool, pool.base, slot) + hv * int64_t{f.K} * f.V * (pool.dtype == DType::fp32 ? 4 : 2);
  };
  if (range.count == 0 && (target.dst < 0 || (target.in_place && target.slot >= 0))) return;

  if (target.slot >= 0) {
    tile.load(head_of(a.state, target.slot), f, v0);
  } else {
    tile.zero();
  }
  if (range.count == 0) {
    tile.store(head_of(a.dst, target.dst), a.dst.dtype, f, v0);
    return;
  }
  const typename Tile::Vectors token{vectors};
  if (warp == 0) prepare_token<Io, KP>(loads, loads, a.tokens, f, token, {});
  __syncthreads();
  float p[R], w[R], u[R];
  tile.dots(token, p, w);
  const float row_p = sum_rows<Tile::kLanes, R>(p, tile.j), row_w = sum_rows<Tile::kLanes, R>(w, tile.j);
  const RowResult result =
      finish_row(token.scalars(), to_float(raw_v, Io::token(a.tokens.v.dtype)), row_p, row_w, a.tokens.scale);
  if (owns_row) store_element(a.tokens.out.data, Io::token(a.tokens.out.dtype), out, result.out);
  if (target.dst < 0) return;
  spread_rows<Tile::kLanes, R>(result.u, u);
  if constexpr (Tile::kRounds) {
    tile.store_updated(token, u, head_of(a.dst, target.dst), a.dst.dtype, f, v0);
  } else {
    tile.update(token, u);
    tile.store(head_of(a.dst, target.dst), a.dst.dtype, f, v0);
  }
}

}  // namespace kda::cuda
