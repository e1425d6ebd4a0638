// Do two strided tensors share a byte? Exact, so that slices of one packed buffer are told apart from real overlaps.
#pragma once

#include <cstdint>

namespace kda {

constexpr int kMaxRegionRank = 9;  // a tensor of the highest rank, and the layers

// The bytes of a strided tensor: positive byte strides in descending order, and a contiguous run at the end.
struct Region {
  uintptr_t begin = 0;
  int rank = 0;
  int64_t count[kMaxRegionRank] = {};
  int64_t stride[kMaxRegionRank] = {};
  int64_t span[kMaxRegionRank + 1] = {};  // bytes from the first to the last of dimensions d.., span[rank] = the run
  bool empty() const { return span[0] == 0; }
};

// strides are in elements and may be negative or zero.
Region make_region(const void* data, int64_t element_bytes, int rank, const int64_t* shape, const int64_t* strides);

// The same region repeated `count` times, `stride` bytes apart.
Region repeat_region(const Region& region, int64_t count, int64_t stride);

bool regions_overlap(const Region& a, const Region& b);

// No two elements of the tensor share an address. May refuse exotic interleavings, never accepts an overlap.
bool is_self_disjoint(int rank, const int64_t* shape, const int64_t* strides);

}  // namespace kda
