// The thread pool under many callers, and one plan used by several threads at once.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "api/world.h"
#include "core/thread_pool.h"

namespace kda_test {
namespace {

TEST(ThreadPool, EveryPieceRunsOnce) {
  for (int threads : {1, 2, 5}) {
    const kda::ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t count : {0, 1, 2, 3, 100, 5000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
      pool.parallel_for(count, [&](int64_t i) { runs[static_cast<size_t>(i)].fetch_add(1); });
      for (const auto& run : runs) ASSERT_EQ(run.load(), 1);
    }
  }
}

TEST(ThreadPool, EightCallersAndNestedLoops) {
  const kda::ThreadPool pool(4);
  std::vector<std::thread> callers;
  std::atomic<int64_t> total{0};
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        std::vector<int64_t> own(17, 0);  // plain memory: a race shows under the thread sanitizer
        pool.parallel_for(17, [&](int64_t i) {
          own[static_cast<size_t>(i)] = i;
          if (i == 3) pool.parallel_for(2, [&](int64_t j) { total.fetch_add(j); });
        });
        for (int64_t value : own) total.fetch_add(value);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total.load(), 8 * 300 * (16 * 17 / 2 + 1));
}

TEST(ThreadPool, WakesAfterSleeping) {
  const kda::ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than workers spin
    std::atomic<int64_t> sum{0};
    pool.parallel_for(64, [&](int64_t i) { sum.fetch_add(i); });
    ASSERT_EQ(sum.load(), 63 * 64 / 2);
  }
}

TEST(ThreadPool, TheCallersOwnPool) {
  struct Own {
    int calls = 0;
    static void run(void* user, int64_t count, void (*body)(void*, int64_t), void* arg) {
      ++static_cast<Own*>(user)->calls;
      for (int64_t i = count; i-- > 0;) body(arg, i);
    }
  } own;
  const kda::ThreadPool pool(&Own::run, &own);
  int64_t sum = 0;
  pool.parallel_for(10, [&](int64_t i) { sum += i; });
  EXPECT_EQ(sum, 45);
  EXPECT_EQ(own.calls, 1);
}

TEST(Plan, SharedByThreads) {
  kda_problem problem = World::default_problem();
  problem.backend = KDA_BACKEND_AUTO;
  problem.operations = KDA_ALL_STATE_OPERATIONS;
  World first(problem);
  const auto extend = [&](World& world) {
    const auto args = world.extend_args();
    first.plan.extend(args, &world.resources);  // everyone uses the first world's plan
    const int64_t count = World::kTokens * World::HV * World::V;
    return std::vector<float>(world.out.data<float>(), world.out.data<float>() + 7 * count / World::kTokens);
  };
  World single(problem);
  const std::vector<float> expected = extend(single);
  std::vector<std::thread> threads;
  std::atomic<int> equal{0};
  constexpr int kThreads = 6, kRounds = 20;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        World own(problem);
        equal += extend(own) == expected ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal.load(), kThreads * kRounds);
}

}  // namespace
}  // namespace kda_test
