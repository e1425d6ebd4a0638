// What only device tensors can show: values checked by the kernels, capture and replay of graphs, sizes of grids, and
// that calls neither allocate nor wait.
#include <cmath>

#include "cuda/fixture.h"

namespace cuda_test {
namespace {

TEST_F(Cuda, BadSlotMakesTheRowNull) {
  for (const int32_t numerics : {KDA_EXACT, KDA_FAST}) {
    Calls x(3, 4, 2, 64, 5, numerics);
    change(x.slot_list, 1, int32_t{5});
    const auto before = x.state.get();
    ASSERT_EQ(x.verify(false), KDA_OK);
    EXPECT_EQ(x.take_status(), KDA_DEVICE_BAD_SLOT);
    EXPECT_TRUE(x.row_is_zero(1));
    EXPECT_FALSE(x.row_is_zero(0));
    ASSERT_EQ(x.extend(), KDA_OK);
    EXPECT_EQ(x.take_status(), KDA_DEVICE_BAD_SLOT);
    EXPECT_TRUE(x.row_is_zero(1));
    EXPECT_NE(first_difference(before, x.state.get()), -1);
  }
}

TEST_F(Cuda, BadParentMakesTheRowNull) {
  for (const int32_t numerics : {KDA_EXACT, KDA_FAST}) {
    for (const int32_t parent : {2, 3, 100, -2}) {
      Calls x(3, 4, 2, 64, 5, numerics);
      change(x.parents, 4 + 2, parent);  // row 1, node 2
      const auto before = x.state.get();
      ASSERT_EQ(x.verify(false), KDA_OK);
      EXPECT_EQ(x.take_status(), KDA_DEVICE_BAD_PARENT) << parent;
      EXPECT_TRUE(x.row_is_zero(1));
      EXPECT_FALSE(x.row_is_zero(2));
      EXPECT_EQ(first_difference(before, x.state.get()), -1);
    }
  }
}

TEST_F(Cuda, BadCuSeqlensWriteNothing) {
  for (const int32_t numerics : {KDA_EXACT, KDA_FAST}) {
    Calls x(3, 4, 2, 64, 5, numerics);
    change(x.cu, 3, int32_t{1000});  // row 2 ends beyond the tokens
    for (const bool verify : {true, false}) {
      ASSERT_EQ(verify ? x.verify(false) : x.extend(), KDA_OK);
      EXPECT_EQ(x.take_status(), KDA_DEVICE_BAD_CU_SEQLENS);
      EXPECT_TRUE(x.row_is_untouched(2));
      EXPECT_FALSE(x.row_is_untouched(1));
    }
  }
}

TEST_F(Cuda, BadSnapshotEntriesAreSkipped) {
  Calls x(2, 4, 2, 64, 6);
  DeviceTensor<int32_t> rows({4}, {0, 1, 7, 1}), positions({4}, {2, 9, 1, 4}), slots({4}, {0, 1, 1, 99});
  const auto before = x.state.get();
  ASSERT_EQ(x.extend(nullptr, {rows.dl(), positions.dl(), slots.dl(), nullptr}), KDA_OK);
  EXPECT_EQ(x.take_status(), KDA_DEVICE_BAD_ENTRY);
  const auto after = x.state.get();
  const size_t slot = before.size() / 6;
  const auto same = [&](size_t s) { return std::memcmp(&before[s * slot], &after[s * slot], slot * 4) == 0; };
  EXPECT_FALSE(same(0));  // the good entry
  EXPECT_TRUE(same(1) && same(2) && same(3));
}

TEST_F(Cuda, BadRecordsAndTipsSkipTheRow) {
  for (const int32_t numerics : {KDA_EXACT, KDA_FAST}) {
    Calls x(2, 4, 2, 64, 5, numerics);
    ASSERT_EQ(x.verify(false), KDA_OK);
    EXPECT_EQ(x.take_status(), 0u);
    const auto before = x.state.get();
    change(x.tips, 0, int32_t{4});
    ASSERT_EQ(x.commit(x.record_rows), KDA_OK);
    EXPECT_EQ(x.take_status(), KDA_DEVICE_BAD_TIP);
    x.state.set(before);
    change(x.tips, 0, int32_t{0});
    change(*x.records, 0, uint8_t{0x55});  // the header's magic
    ASSERT_EQ(x.commit(x.record_rows), KDA_OK);
    EXPECT_EQ(x.take_status(), KDA_DEVICE_BAD_RECORD);
    const auto after = x.state.get();
    const size_t slot = before.size() / 5;
    EXPECT_EQ(std::memcmp(&before[4 * slot], &after[4 * slot], slot * 4), 0) << "row 0's slot";
    EXPECT_NE(std::memcmp(&before[3 * slot], &after[3 * slot], slot * 4), 0) << "row 1's slot";
    // a pending commit from rows that nobody wrote: both rows are null
    ASSERT_EQ(x.verify(true), KDA_OK);
    EXPECT_EQ(x.take_status(), KDA_DEVICE_BAD_RECORD);
    EXPECT_TRUE(x.row_is_zero(0) && x.row_is_zero(1));
    EXPECT_EQ(first_difference(after, x.state.get()), -1);
  }
}

TEST_F(Cuda, CheckValuesFindsSlotsWrittenTwice) {
  Calls x(3, 4, 2, 64, 5, KDA_EXACT, true);
  ASSERT_EQ(x.extend(), KDA_OK);
  EXPECT_EQ(x.take_status(), 0u);
  change(x.slot_list, 2, int32_t{4});  // row 0's
  ASSERT_EQ(x.extend(), KDA_OK);
  EXPECT_EQ(x.take_status(), KDA_DEVICE_ALIASED_SLOT);
}

// One round of verify with pending commit, captured once, replayed with new slots, lengths and trees.
TEST_F(Cuda, GraphReplaysFollowNewValues) {
  for (const int32_t numerics : {KDA_EXACT, KDA_FAST}) {
    const int64_t N = 4, T = 8;
    Calls x(N, T, 2, 128, 12, numerics);
    ASSERT_EQ(x.verify(false), KDA_OK);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    cudaStream_t stream;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    ASSERT_EQ(x.verify(true, stream), KDA_OK);
    ASSERT_EQ(x.commit(x.record_rows, stream), KDA_OK);
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
    std::mt19937 random(9);
    for (int round = 0; round < 20; ++round) {
      std::vector<int32_t> slots, cu = {0}, parents, tips;
      for (int64_t n = 0; n < N; ++n) slots.push_back(int32_t((n * 3 + round) % 12));
      if (round % 5 == 4) slots[1] = -1;
      for (int64_t n = 0; n < N; ++n) cu.push_back(cu.back() + int32_t(random() % (T + 1)));
      for (int64_t i = 0; i < N * T; ++i) parents.push_back(-1);
      for (int64_t n = 0; n < N; ++n) {
        for (int32_t t = 0; t < cu[size_t(n) + 1] - cu[size_t(n)]; ++t) {
          parents[size_t(cu[size_t(n)] + t)] = int32_t(random() % uint32_t(t + 1)) - 1;
        }
        const int32_t nodes = cu[size_t(n) + 1] - cu[size_t(n)];
        tips.push_back(nodes == 0 ? -1 : int32_t(random() % uint32_t(nodes + 1)) - 1);
      }
      // the records that this round's pending commit reads come from the same draft; the commit of this round's own
      // records must find its tips in them
      x.slot_list.set(slots), x.cu.set(cu), x.parents.set(parents), x.tips.set(tips);
      const DeviceTensor<int32_t>* own = &x.record_rows;
      std::vector<int32_t> first = x.record_rows.get(), second = x.pending_rows.get();
      x.record_rows.set(second);
      ASSERT_EQ(x.verify(false), KDA_OK);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      x.record_rows.set(first);
      const auto state = x.state.get();
      const auto records = x.records->get();
      ASSERT_EQ(x.verify(true), KDA_OK);
      ASSERT_EQ(x.commit(*own), KDA_OK);
      EXPECT_EQ(x.take_status(), 0u);
      const auto want_out = x.out.get();
      const auto want_state = x.state.get();
      x.state.set(state);
      x.records->set(records);
      x.out.set(std::vector<uint16_t>(x.out.count(), 0xffff));
      must(cudaMemset(x.out.data(), 0xff, x.out.count() * 2));
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // the stream does not wait for the default one
      ASSERT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      const int64_t written = int64_t{cu.back()} * 2 * 128;
      const auto got = x.out.get();
      EXPECT_EQ(std::memcmp(got.data(), want_out.data(), size_t(written) * 2), 0) << "round " << round;
      EXPECT_EQ(first_difference(x.state.get(), want_state), -1) << "round " << round;
    }
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

// More units than a grid's y dimension could count.
TEST_F(Cuda, MoreThan65535Units) {
  const int64_t N = 600, H = 128;
  Calls x(N, 1, H, 16, N);
  ASSERT_EQ(x.decode(), KDA_OK);
  EXPECT_EQ(x.take_status(), 0u);
  const auto out = x.out.get();
  for (size_t i = 0; i < out.size(); ++i) ASSERT_NE(out[i], 0xffff) << "element " << i << " was not written";
  // the last row alone, whose slot is the pool's first, gives the same bits
  Calls one(1, 1, H, 16, 1);
  const auto tail = [](const auto& tensor, size_t each) {
    const auto all = tensor.get();
    return std::decay_t<decltype(all)>(all.end() - long(each), all.end());
  };
  const size_t row = size_t(H) * 16;
  one.q.set(tail(x.q, row)), one.k.set(tail(x.k, row)), one.v.set(tail(x.v, row)), one.a.set(tail(x.a, row));
  one.b.set(tail(x.b, size_t(H)));
  const std::vector<float> pool = random_fp32(size_t(N * H * 256), 0.3f, 8);
  one.state.set({pool.begin(), pool.begin() + long(H * 256)});
  ASSERT_EQ(one.decode(), KDA_OK);
  EXPECT_EQ(first_difference(one.out.get(), tail(x.out, row)), -1);
}

// Decode of many units has the bits of extend, which is another kernel.
TEST_F(Cuda, DecodeEqualsExtend) {
  for (const int64_t N : {40, 133}) {
    Calls x(N, 1, 8, 128, N + 3);
    change(x.slot_list, 5, int32_t{-1});
    change(x.slot_list, 7, int32_t(N + 3));  // beyond the pool
    const auto before = x.state.get();
    ASSERT_EQ(x.decode(), KDA_OK);
    EXPECT_EQ(x.take_status(), KDA_DEVICE_BAD_SLOT);
    EXPECT_TRUE(x.row_is_zero(5) && x.row_is_zero(7));
    const auto out = x.out.get();
    const auto state = x.state.get();
    x.state.set(before);
    ASSERT_EQ(x.extend(), KDA_OK);
    EXPECT_EQ(x.take_status(), KDA_DEVICE_BAD_SLOT);
    EXPECT_EQ(first_difference(out, x.out.get()), -1);
    EXPECT_EQ(first_difference(state, x.state.get()), -1);
  }
}

TEST_F(Cuda, CallsAllocateNothing) {
  Calls x(8, 8, 4, 128, 16);
  ASSERT_EQ(x.verify(false), KDA_OK);
  ASSERT_EQ(x.extend(), KDA_OK);
  ASSERT_EQ(x.commit(x.record_rows), KDA_OK);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  size_t before = 0, after = 0, total = 0;
  must(cudaMemGetInfo(&before, &total));
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(x.verify(false), KDA_OK);
    ASSERT_EQ(x.extend(), KDA_OK);
    ASSERT_EQ(x.commit(x.record_rows), KDA_OK);
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  must(cudaMemGetInfo(&after, &total));
  EXPECT_EQ(before, after);
}

// The comparison used above sees one flipped bit.
TEST_F(Cuda, APlantedFaultIsFound) {
  Calls x(2, 4, 2, 64, 5);
  ASSERT_EQ(x.verify(false), KDA_OK);
  const auto want = x.out.get();
  change(x.out, 37, uint16_t(want[37] ^ 1));
  EXPECT_EQ(first_difference(x.out.get(), want), 37);
}

}  // namespace
}  // namespace cuda_test
