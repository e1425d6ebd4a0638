#include "runtime/slot_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

namespace kda {
namespace {

using Answer = SlotTable::Answer;

TEST(SlotTable, HandsOutEachIdOnceAndThenIsExhausted) {
  SlotTable table(1, 3);
  std::set<int32_t> ids;
  kda_slot slot{};
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(table.acquire(&slot), Answer::ok);
    ids.insert(slot.id);
  }
  EXPECT_EQ(ids, (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(table.acquire(&slot), Answer::exhausted);
}

TEST(SlotTable, AStaleHandleIsAnErrorForEveryUse) {
  SlotTable table(0, 1);
  kda_slot old{}, fresh{};
  ASSERT_EQ(table.acquire(&old), Answer::ok);
  ASSERT_EQ(table.release(old), Answer::ok);
  ASSERT_EQ(table.acquire(&fresh), Answer::ok);
  EXPECT_EQ(old.id, fresh.id);
  PendingMark mark;
  EXPECT_EQ(table.check(old), Answer::stale);
  EXPECT_EQ(table.check_settled(old), Answer::stale);
  EXPECT_EQ(table.release(old), Answer::stale);
  EXPECT_EQ(table.set_pending(old, {0, 0}), Answer::stale);
  EXPECT_EQ(table.get_pending(old, &mark), Answer::stale);
  EXPECT_EQ(table.check(fresh), Answer::ok);
}

TEST(SlotTable, HandlesThatWereNeverGivenAreStale) {
  SlotTable table(1, 2);
  for (const kda_slot& slot :
       {kda_slot{0, 0}, kda_slot{1, 0}, kda_slot{3, 1}, kda_slot{-1, 0}, kda_slot{INT32_MIN, 0}}) {
    EXPECT_EQ(table.check(slot), Answer::stale) << slot.id;
  }
}

TEST(SlotTable, APendingMarkBlocksForksAndEndsWithTheSlot) {
  SlotTable table(0, 1);
  kda_slot slot{};
  ASSERT_EQ(table.acquire(&slot), Answer::ok);
  EXPECT_EQ(table.check_settled(slot), Answer::ok);
  ASSERT_EQ(table.set_pending(slot, {4, 1}), Answer::ok);
  EXPECT_EQ(table.check_settled(slot), Answer::pending);
  PendingMark mark;
  ASSERT_EQ(table.get_pending(slot, &mark), Answer::ok);
  EXPECT_EQ(mark.tip, 4);
  EXPECT_EQ(mark.record_row, 1);
  ASSERT_EQ(table.release(slot), Answer::ok);
  ASSERT_EQ(table.acquire(&slot), Answer::ok);
  EXPECT_EQ(table.check_settled(slot), Answer::ok);
}

TEST(SlotTable, NoTwoThreadsHoldOneSlot) {
  SlotTable table(0, 8);
  std::atomic<int> holders[8] = {};
  std::atomic<int> clashes{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        kda_slot slot{};
        if (table.acquire(&slot) != Answer::ok) continue;
        if (holders[slot.id].fetch_add(1) != 0) ++clashes;
        holders[slot.id].fetch_sub(1);
        if (table.release(slot) != Answer::ok) ++clashes;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(clashes, 0);
  int32_t free_slots = 0, live_slots = 0;
  table.count(&free_slots, &live_slots);
  EXPECT_EQ(free_slots, 8);
  EXPECT_EQ(live_slots, 0);
}

}  // namespace
}  // namespace kda
