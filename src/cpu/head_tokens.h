// Preparing tokens of one value head, and what all state kernels do with them.
#pragma once

#include "cpu/rows.h"
#include "cpu/scratch.h"
#include "cpu/state_io.h"

namespace kda::cpu {

// The tokens of one value head in one call.
class HeadTokens {
 public:
  // The lane's bias row is filled; one HeadTokens a lane at a time.
  HeadTokens(const Problem&, const TargetFunctions&, const TokenInputs&, int64_t value_head, Lane&);

  // Prepares token `token` (its index in the call's tensors) as lane token `index`. Returns 1/norm of k.
  NormFactor prepare(int64_t token, int index);

  // Asks for a quarter of the inputs (q, k, v or a) of a token that will be prepared later: heads of one token lie
  // together, tokens of one head far apart, which no hardware prefetcher follows. The token need not exist. Asked for
  // all at once, a chunk's inputs would keep the core's few outstanding misses busy and its next loads waiting.
  static constexpr int kPrefetchParts = 4;
  void prefetch(int64_t token, int part) const {
    if (part == 0) prefetch_row(inputs_.q, token, head_, problem_.key_dim);
    if (part == 1) prefetch_row(inputs_.k, token, head_, problem_.key_dim);
    if (part == 2) prefetch_row(inputs_.v, token, value_head_, problem_.value_dim);
    if (part == 3) prefetch_row(inputs_.a, token, value_head_, problem_.key_dim);
  }

  // Rows [first_row, first_row + rows) of out, from lane token `index`, or zeros.
  void store_out(int64_t token, int index, int64_t first_row, int64_t rows) const;
  void store_zero_out(int64_t token, int64_t first_row, int64_t rows) const;

  // k of the token as it came, [K] io dtype.
  const std::byte* key(int64_t token) const { return element(inputs_.k, token, head_); }

 private:
  static void prefetch_row(const TokenView& view, int64_t token, int64_t head, int64_t count) {
    constexpr int64_t kLineBytes = 64;
    const int64_t bytes = count * size_of(view.dtype);
    const auto begin =
        reinterpret_cast<uintptr_t>(view.data) +
        static_cast<uintptr_t>((token * view.token_stride + head * view.head_stride) * size_of(view.dtype));
    for (int64_t i = 0; i < bytes; i += kLineBytes) __builtin_prefetch(reinterpret_cast<const void*>(begin + i), 0, 2);
  }
  static std::byte* element(const TokenView& view, int64_t token, int64_t head) {
    return view.data + (token * view.token_stride + head * view.head_stride) * size_of(view.dtype);
  }
  const Problem& problem_;
  const TargetFunctions& functions_;
  const TokenInputs& inputs_;
  Lane& lane_;
  int64_t value_head_, head_;
  HeadParameters parameters_;
};

// Runs body(first, count) over tiles of [0, rows).
template <class Body>
void for_tiles(const ScratchLayout& layout, int64_t rows, const Body& body) {
  for (int64_t first = 0; first < rows; first += layout.tile_rows) {
    body(first, min_of(layout.tile_rows, rows - first));
  }
}

}  // namespace kda::cpu
