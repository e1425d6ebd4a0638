// The two checks that look for a needle: strided overlap and slots named twice, against brute force.
#include "api/overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "api/distinct.h"

namespace kda {
namespace {

struct Strided {
  int64_t base;
  int rank;
  int64_t shape[3], strides[3];
  std::set<int64_t> bytes(int64_t element, bool* self_disjoint) const {
    std::set<int64_t> all;
    *self_disjoint = true;
    for (int64_t i = 0; i < shape[0]; ++i)
      for (int64_t j = 0; j < shape[1]; ++j)
        for (int64_t k = 0; k < shape[2]; ++k)
          for (int64_t b = 0; b < element; ++b)
            if (!all.insert(base + (i * strides[0] + j * strides[1] + k * strides[2]) * element + b).second)
              *self_disjoint = false;
    return all;
  }
};

TEST(Overlap, AgreesWithBruteForce) {
  std::mt19937 random(3);
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  const auto strided = [&](int64_t element) {
    Strided s{10000 + draw(0, 60) * element, 3, {draw(0, 4), draw(1, 4), draw(1, 4)}, {}};
    const int64_t row = draw(4, 24);
    s.strides[0] = row, s.strides[1] = draw(1, 6), s.strides[2] = draw(0, 3) == 0 ? draw(-2, 2) : 1;
    if (draw(0, 3) == 0) s.strides[0] = -s.strides[0];
    return s;
  };
  int overlapping = 0, apart = 0, disjoint = 0, accepted = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const int64_t element = draw(0, 1) == 0 ? 2 : 4;
    const Strided a = strided(element), b = strided(element);
    bool a_disjoint = false, b_disjoint = false;
    const std::set<int64_t> bytes_a = a.bytes(element, &a_disjoint), bytes_b = b.bytes(element, &b_disjoint);
    bool expected = false;
    for (int64_t byte : bytes_a) expected = expected || bytes_b.count(byte) > 0;
    const auto region = [&](const Strided& s) {
      return make_region(reinterpret_cast<const void*>(s.base), element, s.rank, s.shape, s.strides);
    };
    ASSERT_EQ(regions_overlap(region(a), region(b)), expected) << "trial " << trial;
    (expected ? overlapping : apart)++;
    // is_self_disjoint may refuse, never accepts an overlap.
    const bool accepts = is_self_disjoint(a.rank, a.shape, a.strides);
    ASSERT_TRUE(a_disjoint || !accepts) << "trial " << trial;
    disjoint += a_disjoint ? 1 : 0;
    accepted += accepts ? 1 : 0;
  }
  EXPECT_GT(overlapping, 3000);
  EXPECT_GT(apart, 3000);
  EXPECT_GT(accepted * 10, disjoint * 8);
}

TEST(Distinct, AgreesWithBruteForce) {
  std::mt19937 random(5);
  int conflicts[3] = {};
  for (int trial = 0; trial < 300; ++trial) {
    const size_t writes = 1 + random() % 1600, reads = random() % 1600;
    const uintptr_t places = writes + 20 + random() % 400000;
    const auto draw = [&](size_t count) {
      std::vector<SlotUse> uses(count);
      for (size_t i = 0; i < count; ++i) {
        const uintptr_t begin = 10 * (random() % places);
        uses[i] = {begin, begin + 10, static_cast<int64_t>(i), static_cast<int64_t>(i), 0, ""};
      }
      return uses;
    };
    std::vector<SlotUse> written = draw(writes), read = draw(reads);
    if (random() % 2 == 0) {
      for (size_t i = 0; i < writes; ++i) written[i].begin = 10 * i, written[i].end = 10 * i + 10;
    }
    if (random() % 4 == 0) read = written;  // every row reads what it writes
    Conflict expected = Conflict::none;
    std::set<uintptr_t> begins;
    for (const SlotUse& use : written) {
      if (!begins.insert(use.begin).second) expected = Conflict::written_twice;
    }
    for (const SlotUse& r : read) {
      if (expected != Conflict::none) break;
      for (const SlotUse& w : written) {
        if (w.begin == r.begin && w.row != r.row) expected = Conflict::written_and_read;
      }
    }
    const auto each = [](const std::vector<SlotUse>& uses) {
      return [&uses](const auto& visit) {
        for (const SlotUse& use : uses) visit(use);
      };
    };
    SlotUse first, second;
    const Conflict found = find_conflict(each(written), each(read), &first, &second);
    // With both kinds present either may be reported.
    ASSERT_EQ(found == Conflict::none, expected == Conflict::none) << "trial " << trial;
    if (found != Conflict::none) {
      ASSERT_EQ(first.begin, second.begin);
    }
    ++conflicts[static_cast<int>(found)];
  }
  for (int kind : conflicts) EXPECT_GT(kind, 10);
}

}  // namespace
}  // namespace kda
