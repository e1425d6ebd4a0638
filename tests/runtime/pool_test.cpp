#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kda/kda.hpp"

namespace {

kda_problem small_problem() {
  kda_problem problem = kda::problem();
  problem.backend = KDA_BACKEND_CPU;
  problem.layers = 3;
  problem.max_rows = 2;
  problem.max_tokens = 8;
  problem.max_nodes = 4;
  problem.heads = 2;
  problem.key_dim = 5;
  problem.value_dim = 7;
  problem.conv_width = 4;
  problem.io_dtype = KDA_FP32;
  return problem;
}

kda_pool_options options(int32_t slots, int32_t record_rows = 0) {
  auto o = kda::args<kda_pool_options>();
  o.slots = slots;
  o.record_rows = record_rows;
  return o;
}

kda_status status_of(const auto& call) {
  try {
    call();
  } catch (const kda::Error& error) {
    EXPECT_NE(error.asked(), "");
    EXPECT_NE(error.way_out(), "");
    return error.status();
  }
  return KDA_OK;
}

// Fills a slot's state and window of every layer with values that name layer and position.
void fill(const kda::Pool& pool, int32_t layers, kda_slot slot, float mark) {
  for (int32_t layer = 0; layer < layers; ++layer) {
    for (const kda::Tensor& t : {pool.state(layer), pool.conv_state(layer)}) {
      float* p = t.data<float>() + slot.id * t.stride(0);
      int64_t n = 1;
      for (int d = 1; d < t.rank(); ++d) n *= t.size(d);
      for (int64_t i = 0; i < n; ++i) p[i] = mark + 1000.0f * static_cast<float>(layer) + static_cast<float>(i);
    }
  }
}

struct PoolTest : testing::Test {
  kda::Context context;
};

TEST_F(PoolTest, PlannedBytesAreWhatAllTensorsNeed) {
  const kda::Plan plan(context, small_problem());
  const kda_pool_options o = options(5, 4);
  const size_t bytes = kda::Pool::planned_bytes(plan, o);
  const kda_plan_info& info = plan.info();
  const size_t least = 3 * (5 * (info.state_slot_bytes + info.conv_slot_bytes) +
                            4 * (info.record_row_bytes + info.conv_record_row_bytes));
  EXPECT_GE(bytes, least);
  EXPECT_LE(bytes, least + 3 * (10 + 8) * 64 + 3 * 4 * 64) << "padding is at most a cache line a slot, row and layer";
}

TEST_F(PoolTest, ForkCopiesEveryLayerBitForBitAndTouchesNothingElse) {
  const kda::Plan plan(context, small_problem());
  kda::Pool pool(plan, options(3));
  const kda_slot source = pool.acquire(), bystander = pool.acquire();
  fill(pool, 3, source, 1);
  fill(pool, 3, bystander, 5e5f);
  const std::string before = pool.snapshot(bystander);
  const kda_slot fork = pool.fork(source);
  EXPECT_EQ(pool.snapshot(fork), pool.snapshot(source));
  EXPECT_EQ(pool.snapshot(bystander), before);
  EXPECT_EQ(status_of([&] { pool.fork(source); }), KDA_E_POOL_EXHAUSTED);
}

TEST_F(PoolTest, PendingSlotsNeitherForkNorLeave) {
  const kda::Plan plan(context, small_problem());
  kda::Pool pool(plan, options(2, 2));
  const kda_slot slot = pool.acquire();
  fill(pool, 3, slot, 1);
  const std::string image = pool.snapshot(slot);
  pool.set_pending(slot, 3, 1);
  EXPECT_EQ(status_of([&] { pool.fork(slot); }), KDA_E_POOL_PENDING);
  EXPECT_EQ(status_of([&] { pool.snapshot(slot); }), KDA_E_POOL_PENDING);
  EXPECT_EQ(status_of([&] { pool.restore(slot, image.data(), image.size()); }), KDA_E_POOL_PENDING);
  EXPECT_EQ(pool.pending(slot).tip, 3);
  EXPECT_EQ(pool.pending(slot).record_row, 1);
  EXPECT_EQ(status_of([&] { pool.set_pending(slot, 4, 0); }), KDA_E_TIP);
  EXPECT_EQ(status_of([&] { pool.set_pending(slot, 0, 2); }), KDA_E_RECORD_ROW);
  pool.clear_pending(slot);
  EXPECT_EQ(pool.snapshot(slot), image);
}

TEST_F(PoolTest, RestoreBringsBackEveryBitInAnotherPool) {
  const kda::Plan plan(context, small_problem());
  kda::Pool first(plan, options(1)), second(plan, options(4));
  const kda_slot a = first.acquire();
  fill(first, 3, a, 7);
  const std::string image = first.snapshot(a);
  second.acquire();
  const kda_slot b = second.acquire();
  second.restore(b, image.data(), image.size());
  EXPECT_EQ(second.snapshot(b), image);
}

TEST_F(PoolTest, DamagedImagesAreRefusedAndChangeNothing) {
  const kda::Plan plan(context, small_problem());
  kda::Pool pool(plan, options(2));
  const kda_slot slot = pool.acquire(), other = pool.acquire();
  fill(pool, 3, slot, 7);
  fill(pool, 3, other, 9);
  const std::string image = pool.snapshot(slot), before = pool.snapshot(other);
  for (size_t cut : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, image.size() - 1}) {
    EXPECT_EQ(status_of([&] { pool.restore(other, image.data(), cut); }), KDA_E_POOL_IMAGE) << cut;
  }
  for (size_t byte = 0; byte < image.size(); byte += byte < 64 ? 1 : 97) {
    std::string damaged = image;
    damaged[byte] = static_cast<char>(damaged[byte] ^ 0x10);
    EXPECT_EQ(status_of([&] { pool.restore(other, damaged.data(), damaged.size()); }), KDA_E_POOL_IMAGE) << byte;
  }
  EXPECT_EQ(pool.snapshot(other), before);

  kda_problem different = small_problem();
  different.state_dtype = KDA_BF16;
  const kda::Plan bf16_plan(context, different);
  kda::Pool bf16_pool(bf16_plan, options(1));
  const kda_slot bf16_slot = bf16_pool.acquire();
  EXPECT_EQ(status_of([&] { bf16_pool.restore(bf16_slot, image.data(), image.size()); }), KDA_E_POOL_IMAGE);
}

TEST_F(PoolTest, NullSlotIsNeverHandedOut) {
  kda_problem problem = small_problem();
  problem.null_slot0 = 1;
  const kda::Plan plan(context, problem);
  kda::Pool pool(plan, options(2));
  EXPECT_EQ(pool.state(0).size(0), 3);
  EXPECT_EQ(pool.acquire().id, 1);
  EXPECT_EQ(pool.acquire().id, 2);
}

TEST_F(PoolTest, CallerMemoryIsUsedAndChecked) {
  const kda::Plan plan(context, small_problem());
  kda_pool_options o = options(2);
  const size_t bytes = kda::Pool::planned_bytes(plan, o);
  std::vector<std::byte> memory(bytes + 64);
  const size_t shift = (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  o.memory = memory.data() + shift;
  o.memory_bytes = bytes;
  const kda::Pool pool(plan, o);
  EXPECT_EQ(pool.state(0).data(), o.memory);
  o.memory_bytes = bytes - 1;
  EXPECT_EQ(status_of([&] { kda::Pool refused(plan, o); }), KDA_E_POOL_MEMORY);
  o.memory_bytes = bytes;
  o.memory = memory.data() + shift + 1;
  EXPECT_EQ(status_of([&] { kda::Pool refused(plan, o); }), KDA_E_POOL_MEMORY);
}

TEST_F(PoolTest, OptionsOutOfRangeAreRefused) {
  const kda::Plan plan(context, small_problem());
  EXPECT_EQ(status_of([&] { kda::Pool refused(plan, options(0)); }), KDA_E_NUMBER);
  EXPECT_EQ(status_of([&] { kda::Pool refused(plan, options(1, -1)); }), KDA_E_NUMBER);
  kda_pool_options many = options(1);
  many.layers = 4;
  EXPECT_EQ(status_of([&] { kda::Pool refused(plan, many); }), KDA_E_PLAN_LIMIT);
  EXPECT_EQ(status_of([&] { kda::Pool::planned_bytes(plan, options(INT32_MAX)); }), KDA_OK) << "large, but countable";
  kda::Pool pool(plan, options(1));
  EXPECT_EQ(status_of([&] { pool.state(3); }), KDA_E_NUMBER);
  EXPECT_EQ(status_of([&] { pool.records(0); }), KDA_E_COMBINATION);
}

}  // namespace
