#include "api/overlap.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kda {
namespace {

// By descending stride. There are few, so insertion is all it takes.
void sort_dimensions(Region* region) {
  for (int i = 1; i < region->rank; ++i) {
    for (int j = i; j > 0 && region->stride[j] > region->stride[j - 1]; --j) {
      std::swap(region->stride[j], region->stride[j - 1]);
      std::swap(region->count[j], region->count[j - 1]);
    }
  }
}

// Sorts the dimensions, folds those that continue the run, and fills in the spans.
void finish(Region* region, int64_t run) {
  sort_dimensions(region);
  while (region->rank > 0 && region->stride[region->rank - 1] <= run) {
    --region->rank;
    run += (region->count[region->rank] - 1) * region->stride[region->rank];
  }
  region->span[region->rank] = run;
  for (int d = region->rank - 1; d >= 0; --d) {
    region->span[d] = region->span[d + 1] + (region->count[d] - 1) * region->stride[d];
  }
}

void add_dimension(Region* region, int64_t count, int64_t stride) {
  if (count <= 1 || stride == 0) return;
  if (stride < 0) {
    region->begin -= static_cast<uintptr_t>(-stride * (count - 1));
    stride = -stride;
  }
  region->count[region->rank] = count;
  region->stride[region->rank++] = stride;
}

int64_t common_stride(const Region& region, int64_t g) {
  for (int d = 0; d < region.rank; ++d) g = std::gcd(g, region.stride[d]);
  return g;
}

// Every run of a tensor starts at the same place modulo a stride that divides all its strides: slices of the columns of
// one packed row are told apart by that place alone.
bool runs_miss_modulo_stride(const Region& a, const Region& b) {
  const int64_t g = common_stride(b, common_stride(a, 0));
  const int64_t run_a = a.span[a.rank], run_b = b.span[b.rank];
  if (g == 0 || run_a + run_b > g) return false;
  const auto modulus = static_cast<uintptr_t>(g);
  const auto ahead = static_cast<int64_t>((b.begin % modulus + modulus - a.begin % modulus) % modulus);
  return ahead >= run_a && ahead + run_b <= g;
}

// Dimensions from `da` of a starting at `pa` against dimensions from `db` of b starting at `pb`. Visits only the
// indices of the wider tensor that reach the other one.
bool overlap_from(const Region& a, int da, uintptr_t pa, const Region& b, int db, uintptr_t pb) {
  if (pa + static_cast<uintptr_t>(a.span[da]) <= pb || pb + static_cast<uintptr_t>(b.span[db]) <= pa) return false;
  if (da == a.rank && db == b.rank) return true;
  if (da == a.rank || (db < b.rank && b.span[db] > a.span[da])) return overlap_from(b, db, pb, a, da, pa);
  const int64_t stride = a.stride[da];
  const auto to_begin = static_cast<int64_t>(pb - pa);  // of b, from the start of a; negative if b starts first
  const int64_t before = to_begin - a.span[da + 1];     // an index reaches b if index * stride > before ...
  const int64_t after = to_begin + b.span[db] - 1;      // ... and index * stride <= after
  const int64_t first = before < 0 ? 0 : before / stride + 1;
  const int64_t last = std::min(a.count[da] - 1, after / stride);
  for (int64_t i = first; i <= last; ++i) {
    if (overlap_from(a, da + 1, pa + static_cast<uintptr_t>(i * stride), b, db, pb)) return true;
  }
  return false;
}

}  // namespace

Region make_region(const void* data, int64_t element_bytes, int rank, const int64_t* shape, const int64_t* strides) {
  Region region;
  region.begin = reinterpret_cast<uintptr_t>(data);
  for (int d = 0; d < rank; ++d) {
    if (shape[d] == 0) return Region{};
    add_dimension(&region, shape[d], strides[d] * element_bytes);
  }
  finish(&region, element_bytes);
  return region;
}

Region repeat_region(const Region& region, int64_t count, int64_t stride) {
  if (region.empty()) return region;
  Region repeated = region;
  add_dimension(&repeated, count, stride);
  finish(&repeated, region.span[region.rank]);
  return repeated;
}

bool regions_overlap(const Region& a, const Region& b) {
  if (a.empty() || b.empty()) return false;
  if (a.begin + static_cast<uintptr_t>(a.span[0]) <= b.begin ||
      b.begin + static_cast<uintptr_t>(b.span[0]) <= a.begin) {
    return false;
  }
  return !runs_miss_modulo_stride(a, b) && overlap_from(a, 0, a.begin, b, 0, b.begin);
}

bool is_self_disjoint(int rank, const int64_t* shape, const int64_t* strides) {
  Region elements;
  for (int d = 0; d < rank; ++d) {
    if (shape[d] == 0) return true;
    if (shape[d] > 1 && strides[d] == 0) return false;
    add_dimension(&elements, shape[d], strides[d]);
  }
  sort_dimensions(&elements);
  int64_t extent = 1;
  for (int d = elements.rank - 1; d >= 0; --d) {
    if (elements.stride[d] < extent) return false;
    extent += elements.stride[d] * (elements.count[d] - 1);
  }
  return true;
}

}  // namespace kda
