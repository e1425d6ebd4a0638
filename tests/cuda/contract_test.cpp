// What only device tensors can show: values checked by the kernels, capture and replay of graphs, sizes of grids, and
// that calls neither allocate nor wait.
#include <cmath>
#include <memory>

#include "cuda/device_tensor.h"

namespace cuda_test {
namespace {

// A call's tensors for N rows of T tokens over a pool of `slots`, bf16 io.
struct Bench {
  int64_t N, T, H, D, slots;
  int max_nodes;
  kda_context* context = nullptr;
  kda_plan* plan = nullptr;
  kda_plan_info info{};
  DeviceTensor<uint16_t> q, k, v, a, b, out;
  DeviceTensor<float> A_log, dt_bias, state;
  DeviceTensor<int32_t> slot_list, cu, parents, tips, record_rows, pending_rows;
  DeviceTensor<uint32_t> status;
  std::unique_ptr<DeviceTensor<uint8_t>> records;

  Bench(int64_t N, int64_t T, int64_t H, int64_t D, int64_t slots, int32_t numerics = KDA_EXACT,
        bool check_values = false)
      : N(N),
        T(T),
        H(H),
        D(D),
        slots(slots),
        max_nodes(int(std::min<int64_t>(T, 64))),
        q({N * T, H, D}, random_bf16(size_t(N * T * H * D), 1, 1)),
        k({N * T, H, D}, random_bf16(size_t(N * T * H * D), 1, 2)),
        v({N * T, H, D}, random_bf16(size_t(N * T * H * D), 1, 3)),
        a({N * T, H, D}, random_bf16(size_t(N * T * H * D), 2, 4)),
        b({N * T, H}, random_bf16(size_t(N * T * H), 2, 5)),
        out({N * T, H, D}),
        A_log({H}, random_fp32(size_t(H), 0.5f, 6)),
        dt_bias({H * D}, random_fp32(size_t(H * D), 1, 7)),
        state({slots, H, D, D}, random_fp32(size_t(slots * H * D * D), 0.3f, 8)),
        slot_list({N}),
        cu({N + 1}),
        parents({N * T}),
        tips({N}),
        record_rows({N}),
        pending_rows({N}),
        status({1}, {0u}) {
    std::vector<int32_t> list, cuts, chain, ones, first, second;
    for (int64_t n = 0; n < N; ++n) list.push_back(int32_t(slots - 1 - n));
    for (int64_t n = 0; n <= N; ++n) cuts.push_back(int32_t(n * T));
    for (int64_t n = 0; n < N * T; ++n) chain.push_back(int32_t(n % T) - 1);
    for (int64_t n = 0; n < N; ++n) first.push_back(int32_t(n)), second.push_back(int32_t(N + n)), ones.push_back(0);
    slot_list.set(list), cu.set(cuts), parents.set(chain), tips.set(ones), record_rows.set(first);
    pending_rows.set(second);
    EXPECT_EQ(kda_context_create(nullptr, &context, nullptr), KDA_OK);
    kda_problem p{};
    p.struct_size = sizeof(p);
    p.backend = KDA_BACKEND_CUDA;
    p.operations = KDA_ALL_STATE_OPERATIONS;
    p.max_rows = N;
    p.max_tokens = N * T;
    p.max_nodes = max_nodes;
    p.max_snapshots = 4;
    p.heads = int32_t(H);
    p.key_dim = int32_t(D);
    p.verify_numerics = numerics;
    p.check_values = check_values;
    kda_error error{};
    error.struct_size = sizeof(error);
    EXPECT_EQ(kda_plan_create(context, &p, &plan, &error), KDA_OK) << error.message;
    info.struct_size = sizeof(info);
    EXPECT_EQ(kda_plan_get_info(plan, &info), KDA_OK);
    records = std::make_unique<DeviceTensor<uint8_t>>(std::vector<int64_t>{2 * N, int64_t(info.record_row_bytes)});
  }
  ~Bench() {
    kda_plan_destroy(plan);
    kda_context_destroy(context);
  }

  kda_tokens tokens() const {
    kda_tokens t{};
    t.q = q.dl(), t.k = k.dl(), t.v = v.dl(), t.a = a.dl(), t.b = b.dl(), t.out = out.dl();
    t.A_log = A_log.dl(), t.dt_bias = dt_bias.dl();
    return t;
  }
  kda_rows rows() const {
    kda_rows r{};
    r.cu_seqlens = cu.dl(), r.slots = slot_list.dl(), r.state = state.dl();
    return r;
  }
  kda_call call(cudaStream_t stream = nullptr) const {
    kda_call c{};
    c.struct_size = sizeof(c);
    c.stream = stream;
    c.device_status = status.data();
    return c;
  }
  kda_status extend(cudaStream_t stream = nullptr, const kda_snapshots& snapshots = {}) const {
    kda_extend_args args{};
    args.struct_size = sizeof(args);
    args.tokens = tokens(), args.rows = rows(), args.snapshots = snapshots;
    const kda_call c = call(stream);
    return kda_extend(plan, &args, &c, nullptr);
  }
  kda_status decode(cudaStream_t stream = nullptr) const {
    kda_decode_args args{};
    args.struct_size = sizeof(args);
    args.tokens = tokens(), args.rows = rows();
    const kda_call c = call(stream);
    return kda_decode(plan, &args, &c, nullptr);
  }
  kda_status verify(bool pending, cudaStream_t stream = nullptr) const {
    kda_verify_args args{};
    args.struct_size = sizeof(args);
    args.tokens = tokens(), args.rows = rows();
    args.parents = parents.dl(), args.records = records->dl(), args.record_rows = record_rows.dl();
    if (pending) args.pending_tips = tips.dl(), args.pending_record_rows = pending_rows.dl();
    const kda_call c = call(stream);
    return kda_verify(plan, &args, &c, nullptr);
  }
  kda_status commit(const DeviceTensor<int32_t>& from, cudaStream_t stream = nullptr) const {
    kda_commit_args args{};
    args.struct_size = sizeof(args);
    args.rows = rows();
    args.rows.cu_seqlens = nullptr;
    args.tips = tips.dl(), args.records = records->dl(), args.record_rows = from.dl();
    const kda_call c = call(stream);
    return kda_commit(plan, &args, &c, nullptr);
  }
  uint32_t take_status() {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const uint32_t bits = status.get()[0];
    status.set({0u});
    return bits;
  }
  bool row_is_zero(int64_t n) const {
    const std::vector<uint16_t> o = out.get();
    for (int64_t i = n * T * H * D; i < (n + 1) * T * H * D; ++i) {
      if (o[size_t(i)] != 0) return false;
    }
    return true;
  }
  bool row_is_untouched(int64_t n) const {
    const std::vector<uint16_t> o = out.get();
    for (int64_t i = n * T * H * D; i < (n + 1) * T * H * D; ++i) {
      if (o[size_t(i)] != 0xffff) return false;
    }
    return true;
  }
};

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU";
  }
};

template <class T>
void change(DeviceTensor<T>& tensor, size_t i, T value) {
  std::vector<T> values = tensor.get();
  values[i] = value;
  tensor.set(values);
}

TEST_F(Cuda, BadSlotMakesTheRowNull) {
  for (const int32_t numerics : {KDA_EXACT, KDA_FAST}) {
    Bench x(3, 4, 2, 64, 5, numerics);
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
      Bench x(3, 4, 2, 64, 5, numerics);
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
    Bench x(3, 4, 2, 64, 5, numerics);
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
  Bench x(2, 4, 2, 64, 6);
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
    Bench x(2, 4, 2, 64, 5, numerics);
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
  Bench x(3, 4, 2, 64, 5, KDA_EXACT, true);
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
    Bench x(N, T, 2, 128, 12, numerics);
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
  Bench x(N, 1, H, 16, N);
  ASSERT_EQ(x.decode(), KDA_OK);
  EXPECT_EQ(x.take_status(), 0u);
  const auto out = x.out.get();
  for (size_t i = 0; i < out.size(); ++i) ASSERT_NE(out[i], 0xffff) << "element " << i << " was not written";
  // the last row alone, whose slot is the pool's first, gives the same bits
  Bench one(1, 1, H, 16, 1);
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
    Bench x(N, 1, 8, 128, N + 3);
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
  Bench x(8, 8, 4, 128, 16);
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
  Bench x(2, 4, 2, 64, 5);
  ASSERT_EQ(x.verify(false), KDA_OK);
  const auto want = x.out.get();
  change(x.out, 37, uint16_t(want[37] ^ 1));
  EXPECT_EQ(first_difference(x.out.get(), want), 37);
}

}  // namespace
}  // namespace cuda_test
