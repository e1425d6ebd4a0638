// Applying a recorded path to one block of channels of a window: conv commit, and verify's pending commit.
#pragma once

#include "cpu/conv_window.h"
#include "cpu/records.h"
#include "cpu/snapshots.h"

namespace kda::cpu {

struct ConvCommitUnit {
  const Problem& problem;
  const TargetFunctions& functions;
  const ConvBlock& block;
  const ConvScratch& scratch;
  Lane& lane;
  const Row& row;
  int layer;
  const ConvPool &state, &dst;
  const RecordPath& path;  // not empty
  const std::byte* record;
  int64_t channels;  // of the call
  const ConvSnapshots& snapshots;
};

// Stores the window after the path, and snapshots on the way. With keep, the lane's window rows hold it afterwards.
void commit_window(const ConvCommitUnit&, bool keep);

}  // namespace kda::cpu
