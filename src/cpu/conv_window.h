// Windows and weights of the short convolution, for one block of channels.
#pragma once

#include "cpu/rows.h"
#include "cpu/scratch.h"

namespace kda::cpu {

struct ConvBlock {
  int64_t first, channels;
};

// The lane's convolution rows by their use (see conv_rows in scratch.h).
class ConvScratch {
 public:
  ConvScratch(const Problem& problem, const Lane& lane) : lane_(lane), width_(problem.conv_width) {}
  float* interleaved() const { return lane_.conv_row(0); }  // [kConvBlock * W]
  float* weight(int w) const { return lane_.conv_row(width_ + w); }
  float* bias() const { return lane_.conv_row(2 * width_); }
  float* out() const { return lane_.conv_row(2 * width_ + 1); }
  float* window(int w) const { return lane_.conv_row(2 * width_ + 2 + w); }     // w = 0 (oldest) .. W-2
  float* input(int64_t i) const { return lane_.conv_row(3 * width_ + 1 + i); }  // a node, or i of a ring of W

 private:
  const Lane& lane_;
  int width_;
};

// Reads the window of a slot, zeros where slot < 0.
void load_window(const Problem&, const TargetFunctions&, const ConvPool&, int layer, int64_t slot, const ConvBlock&,
                 const ConvScratch&);
// Stores W-1 rows of channels, oldest first, rounded to the pool's dtype.
void store_window(const Problem&, const TargetFunctions&, const float* const* rows, const ConvPool&, int layer,
                  int64_t slot, const ConvBlock&, const ConvScratch&);
void copy_window(const Problem&, const TargetFunctions&, const ConvPool& from, int64_t from_slot, const ConvPool& to,
                 int64_t to_slot, int layer, const ConvBlock&, const ConvScratch&);

// Fills weight rows and bias of the lane.
void load_weights(const Problem&, const TargetFunctions&, const ConvLaunch&, const ConvBlock&, const ConvScratch&);

// Work over (rows, blocks of channels): a piece takes one block of several rows, so that the weights are prepared once
// for them.
struct ConvSplit {
  int64_t rows, channels, blocks, rows_per_piece, groups;
  int64_t count() const { return blocks * groups; }
  ConvBlock block(int64_t piece) const {
    const int64_t first = piece / groups * kConvBlock;
    return {.first = first, .channels = min_of(kConvBlock, channels - first)};
  }
  int64_t first_row(int64_t piece) const { return piece % groups * rows_per_piece; }
  int64_t last_row(int64_t piece) const { return min_of(rows, first_row(piece) + rows_per_piece); }
};
ConvSplit split_conv(int64_t rows, int64_t channels, int threads);

}  // namespace kda::cpu
