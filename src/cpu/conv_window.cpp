#include "cpu/conv_window.h"

#include <cstring>

#include "cpu/half.h"

namespace kda::cpu {
namespace {

std::byte* element_of(const ConvPool& pool, int layer, int64_t slot, int64_t w, int64_t channel) {
  return pool.layer_base(layer) +
         (slot * pool.slot_stride + w * pool.window_stride + channel * pool.channel_stride) * size_of(pool.dtype);
}

// The windows of neighbouring channels follow each other.
bool channel_major(const Problem& p, const ConvPool& pool) {
  return pool.window_stride == 1 && pool.channel_stride == p.conv_width - 1;
}

}  // namespace

void load_window(const Problem& p, const TargetFunctions& f, const ConvPool& pool, int layer, int64_t slot,
                 const ConvBlock& block, const ConvScratch& scratch) {
  const int count = p.conv_width - 1;
  if (slot < 0) {
    for (int w = 0; w < count; ++w) std::memset(scratch.window(w), 0, kConvBlock * sizeof(float));
  } else if (pool.channel_stride == 1) {
    for (int w = 0; w < count; ++w) {
      f.widen(element_of(pool, layer, slot, w, block.first), pool.dtype, block.channels, scratch.window(w));
    }
  } else if (channel_major(p, pool)) {
    float* rows[kMaxConvWidth];
    for (int w = 0; w < count; ++w) rows[w] = scratch.window(w);
    f.widen(element_of(pool, layer, slot, 0, block.first), pool.dtype, block.channels * count, scratch.interleaved());
    f.split_taps(scratch.interleaved(), count, block.channels, rows);
  } else {
    for (int w = 0; w < count; ++w) {
      for (int64_t c = 0; c < block.channels; ++c) {
        scratch.window(w)[c] = load_element(element_of(pool, layer, slot, w, block.first + c), pool.dtype, 0);
      }
    }
  }
}

void store_window(const Problem& p, const TargetFunctions& f, const float* const* rows, const ConvPool& pool, int layer,
                  int64_t slot, const ConvBlock& block, const ConvScratch& scratch) {
  const int count = p.conv_width - 1;
  if (pool.channel_stride == 1) {
    for (int w = 0; w < count; ++w) {
      f.narrow(rows[w], block.channels, pool.dtype, element_of(pool, layer, slot, w, block.first));
    }
  } else if (channel_major(p, pool)) {
    f.join_taps(rows, count, block.channels, scratch.interleaved());
    f.narrow(scratch.interleaved(), block.channels * count, pool.dtype, element_of(pool, layer, slot, 0, block.first));
  } else {
    for (int w = 0; w < count; ++w) {
      for (int64_t c = 0; c < block.channels; ++c) {
        store_element(rows[w][c], element_of(pool, layer, slot, w, block.first + c), pool.dtype, 0);
      }
    }
  }
}

void copy_window(const Problem& p, const TargetFunctions& f, const ConvPool& from, int64_t from_slot,
                 const ConvPool& to, int64_t to_slot, int layer, const ConvBlock& block, const ConvScratch& scratch) {
  if (from_slot >= 0 && from.dtype == to.dtype) {  // every bit, NaN payloads too
    const int64_t size = size_of(from.dtype);
    for (int w = 0; w < p.conv_width - 1; ++w) {
      for (int64_t c = block.first; c < block.first + block.channels; ++c) {
        std::memcpy(element_of(to, layer, to_slot, w, c), element_of(from, layer, from_slot, w, c), size);
      }
    }
    return;
  }
  load_window(p, f, from, layer, from_slot, block, scratch);
  const float* rows[kMaxConvWidth];
  for (int w = 0; w < p.conv_width - 1; ++w) rows[w] = scratch.window(w);
  store_window(p, f, rows, to, layer, to_slot, block, scratch);
}

void load_weights(const Problem& p, const TargetFunctions& f, const ConvLaunch& launch, const ConvBlock& block,
                  const ConvScratch& scratch) {
  const int64_t size = size_of(launch.weight_dtype), width = p.conv_width;
  const std::byte* from = launch.weight + block.first * launch.weight_stride * size;
  float* rows[kMaxConvWidth];
  for (int w = 0; w < width; ++w) rows[w] = scratch.weight(w);
  if (launch.weight_stride == width) {
    f.widen(from, launch.weight_dtype, block.channels * width, scratch.interleaved());
    f.split_taps(scratch.interleaved(), p.conv_width, block.channels, rows);
  } else {
    for (int64_t c = 0; c < block.channels; ++c) {
      for (int64_t w = 0; w < width; ++w) {
        rows[w][c] = load_element(from, launch.weight_dtype, c * launch.weight_stride + w);
      }
    }
  }
  if (launch.bias != nullptr)
    f.widen(launch.bias + block.first * size, launch.weight_dtype, block.channels, scratch.bias());
}

ConvSplit split_conv(int64_t rows, int64_t channels, int threads) {
  ConvSplit s{.rows = rows,
              .channels = channels,
              .blocks = (channels + kConvBlock - 1) / kConvBlock,
              .rows_per_piece = rows,
              .groups = rows > 0 ? 1 : 0};
  if (rows > 0 && s.blocks < 4 * threads) {
    const int64_t wanted = min_of(rows, (4 * threads + s.blocks - 1) / s.blocks);
    s.rows_per_piece = (rows + wanted - 1) / wanted;
    s.groups = (rows + s.rows_per_piece - 1) / s.rows_per_piece;
  }
  return s;
}

}  // namespace kda::cpu
