// MLA attention in absorbed form over a cache of compressed rows: every query head sees the same keys, which are the
// cache rows themselves, and its values are the rows' first value_width entries. (A head of plain attention is the same
// with values beside the keys: value_offset.)
//
// Order: scores, softmax and the weighted sum run over the visible rows by their position in the sequence, never by
// where a row lies in the cache. A draft node's ancestors lie scattered behind the committed rows; they are visited by
// depth, so a node gets the bits that plain decoding gives when the same rows lie side by side.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/threads.h"

namespace kda::model {

struct Attention {
  const float* queries = nullptr;  // [rows, heads, width]
  int64_t rows = 0;
  int heads = 0;
  const float* cache = nullptr;  // [*, width]
  int64_t width = 0;
  int64_t value_width = 0;
  float scale = 1;
  // Row r sees cache rows [0, common) and then those whose indices are path[path_begin[r]] .. path[path_begin[r+1]-1],
  // in this order, which is the order of positions. At least one row is visible.
  int64_t common = 0;
  std::span<const int32_t> path;
  std::span<const int32_t> path_begin;  // [rows + 1]
  float* out = nullptr;                 // [rows, heads, value_width]
  int64_t cache_stride = width;         // from one cache row to the next
  int64_t value_offset = 0;             // where a cache row's values begin
};

void run_attention(const Threads& threads, const Attention& attention);

}  // namespace kda::model
