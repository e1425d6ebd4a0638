// Exact verify and pending commit of many rows and heads in one call, which has a kernel of its own on Hopper, against
// calls of one row each, which have not: the same bits in outputs, pools and (by commit) records. Ragged, empty, null,
// fresh and bad rows, chains and random trees.
#include <algorithm>

#include "cuda/fixture.h"

namespace cuda_test {
namespace {

constexpr int64_t kRows = 13, kHeads = 32, kDim = 128, kNodes = 16, kSlots = 20;
constexpr int64_t kHead = kHeads * kDim;

// Tensor `from` from its item `first` on, `count` items of its first dimension.
struct Part {
  DLTensor tensor;
  int64_t shape[4];
  template <class T>
  Part(const DeviceTensor<T>& from, int64_t first, int64_t count) : tensor(*from.dl()) {
    int64_t item = sizeof(T);
    for (int i = 0; i < tensor.ndim; ++i) shape[i] = tensor.shape[i], item *= i == 0 ? 1 : shape[i];
    shape[0] = count;
    tensor.shape = shape;
    tensor.data = static_cast<char*>(tensor.data) + first * item;
  }
};

template <class PoolElement>
struct World {
  std::mt19937 random;
  std::vector<int32_t> cuts{0};
  DeviceTensor<uint16_t> q, k, v, a, b, out;
  DeviceTensor<float> A_log, dt_bias;
  DeviceTensor<PoolElement> pool, other_pool;
  DeviceTensor<int32_t> cu, one_cu, slots, dst_slots, parents, tips, first_rows, second_rows;
  DeviceTensor<uint8_t> has_state;
  DeviceTensor<uint32_t> status;
  kda_context* context = nullptr;
  kda_plan *many = nullptr, *one = nullptr;
  std::unique_ptr<DeviceTensor<uint8_t>> records, workspace;

  static std::vector<PoolElement> random_pool(uint32_t seed) {
    if constexpr (std::is_same_v<PoolElement, float>) {
      return random_fp32(kSlots * kHead * kDim, 0.3f, seed);
    } else {
      return random_bf16(kSlots * kHead * kDim, 0.3f, seed);
    }
  }
  explicit World(uint32_t seed)
      : random(seed),
        q({kRows * kNodes, kHeads, kDim}, random_bf16(kRows * kNodes * kHead, 1, seed + 1)),
        k({kRows * kNodes, kHeads, kDim}, random_bf16(kRows * kNodes * kHead, 1, seed + 2)),
        v({kRows * kNodes, kHeads, kDim}, random_bf16(kRows * kNodes * kHead, 1, seed + 3)),
        a({kRows * kNodes, kHeads, kDim}, random_bf16(kRows * kNodes * kHead, 2, seed + 4)),
        b({kRows * kNodes, kHeads}, random_bf16(kRows * kNodes * kHeads, 2, seed + 5)),
        out({kRows * kNodes, kHeads, kDim}),
        A_log({kHeads}, random_fp32(kHeads, 0.5f, seed + 6)),
        dt_bias({kHead}, random_fp32(kHead, 1, seed + 7)),
        pool({kSlots, kHeads, kDim, kDim}, random_pool(seed + 8)),
        other_pool({kSlots, kHeads, kDim, kDim}),
        cu({kRows + 1}),
        one_cu({2}),
        slots({kRows}),
        dst_slots({kRows}),
        parents({kRows * kNodes}),
        tips({kRows}),
        first_rows({kRows}),
        second_rows({kRows}),
        has_state({kRows}),
        status({1}, {0u}) {
    std::vector<int32_t> order, first, second, dst, tip_list;
    std::vector<uint8_t> has;
    for (int32_t i = 0; i < kSlots; ++i) order.push_back(i);
    std::shuffle(order.begin(), order.end(), random);
    for (int32_t n = 0; n < kRows; ++n) {
      const int32_t length = n == 1 ? 0 : n == 2 ? kNodes : int32_t(random() % (kNodes + 1));
      cuts.push_back(cuts.back() + length);
      first.push_back(n), second.push_back(int32_t(kRows) + n);
      has.push_back(n != 3 && n != 4);
      dst.push_back(n % 4 == 3 ? -1 : order[size_t(kRows - n)]);
      tip_list.push_back(length == 0 ? -1 : int32_t(random() % unsigned(length + 1)) - 1);
    }
    order.resize(kRows);
    order[5] = -1;                   // a null row
    order[6] = int32_t(kSlots + 3);  // a slot beyond the pool
    cu.set(cuts), slots.set(order), dst_slots.set(dst), tips.set(tip_list), first_rows.set(first);
    second_rows.set(second), has_state.set(has);
    EXPECT_EQ(kda_context_create(nullptr, &context, nullptr), KDA_OK);
    many = plan(kRows), one = plan(1);
    kda_plan_info info{};
    info.struct_size = sizeof(info);
    EXPECT_EQ(kda_plan_get_info(many, &info), KDA_OK);
    records = std::make_unique<DeviceTensor<uint8_t>>(std::vector<int64_t>{2 * kRows, int64_t(info.record_row_bytes)});
    workspace = std::make_unique<DeviceTensor<uint8_t>>(std::vector<int64_t>{int64_t(info.workspace_bytes)});
  }
  ~World() {
    kda_plan_destroy(many), kda_plan_destroy(one);
    kda_context_destroy(context);
  }
  kda_plan* plan(int64_t rows) const {
    kda_problem p{};
    p.struct_size = sizeof(p);
    p.backend = KDA_BACKEND_CUDA;
    p.operations =
        KDA_OPERATION_BIT(KDA_VERIFY) | KDA_OPERATION_BIT(KDA_VERIFY_PENDING) | KDA_OPERATION_BIT(KDA_COMMIT);
    p.max_rows = rows, p.max_tokens = kRows * kNodes, p.max_nodes = kNodes;
    p.heads = kHeads, p.key_dim = kDim;
    p.state_dtype = std::is_same_v<PoolElement, float> ? KDA_FP32 : KDA_BF16;
    kda_plan* made = nullptr;
    kda_error error{};
    error.struct_size = sizeof(error);
    EXPECT_EQ(kda_plan_create(context, &p, &made, &error), KDA_OK) << error.message;
    return made;
  }
  void draw_parents(bool tree, bool with_bad_row) {
    std::vector<int32_t> all;
    for (int64_t n = 0; n < kRows; ++n) {
      for (int32_t t = 0; t < cuts[size_t(n) + 1] - cuts[size_t(n)]; ++t) {
        all.push_back(tree ? int32_t(random() % unsigned(t + 1)) - 1 : t - 1);
      }
      if (with_bad_row && n == 2) all.back() = kNodes;  // a node that is not earlier
    }
    all.resize(kRows * kNodes, 0);
    parents.set(all);
  }

  // Rows first .. first + count in one call. with_parents: false leaves them out (chains).
  kda_status verify(kda_plan* on, int64_t first, int64_t count, bool with_parents, bool pending, bool to_other_pool) {
    const int64_t from = cuts[size_t(first)], tokens = cuts[size_t(first + count)] - from;
    const auto part = [&](const auto& t) { return Part(t, from, tokens); };
    const auto rows_of = [&](const auto& t) { return Part(t, first, count); };
    const Part q1 = part(q), k1 = part(k), v1 = part(v), a1 = part(a), b1 = part(b), out1 = part(out);
    const Part parents1 = part(parents), slots1 = rows_of(slots), dst1 = rows_of(dst_slots), has1 = rows_of(has_state);
    const Part tips1 = rows_of(tips), first1 = rows_of(first_rows), second1 = rows_of(second_rows);
    one_cu.set({0, int32_t(tokens)});
    kda_verify_args args{};
    args.struct_size = sizeof(args);
    args.tokens.q = &q1.tensor, args.tokens.k = &k1.tensor, args.tokens.v = &v1.tensor, args.tokens.a = &a1.tensor;
    args.tokens.b = &b1.tensor, args.tokens.out = &out1.tensor;
    args.tokens.A_log = A_log.dl(), args.tokens.dt_bias = dt_bias.dl();
    args.rows.cu_seqlens = count == 1 ? one_cu.dl() : cu.dl();
    args.rows.slots = &slots1.tensor, args.rows.state = pool.dl(), args.rows.has_state = &has1.tensor;
    if (with_parents) args.parents = &parents1.tensor;
    args.records = records->dl(), args.record_rows = pending ? &second1.tensor : &first1.tensor;
    if (pending) args.pending_tips = &tips1.tensor, args.pending_record_rows = &first1.tensor;
    if (to_other_pool) args.rows.dst_slots = &dst1.tensor, args.rows.dst_state = other_pool.dl();
    kda_call call{};
    call.struct_size = sizeof(call);
    call.device_status = status.data();
    call.workspace = workspace->data(), call.workspace_bytes = workspace->count();
    return kda_verify(on, &args, &call, nullptr);
  }

  struct Seen {
    std::vector<uint16_t> out;
    std::vector<PoolElement> pool, other_pool;
    uint32_t status;
  };
  // Two rounds, the second with the first's commit pending, from the same pools.
  Seen rounds(bool many_rows, bool with_parents, bool to_other_pool, const std::vector<PoolElement>& before) {
    pool.set(before);
    other_pool.set(std::vector<PoolElement>(other_pool.count(), PoolElement(0)));
    status.set({0u});
    records->set(std::vector<uint8_t>(records->count(), 0xff));
    Seen seen;
    for (const bool pending : {false, true}) {
      out.set(std::vector<uint16_t>(out.count(), 0xffff));
      if (many_rows) {
        EXPECT_EQ(verify(many, 0, kRows, with_parents, pending, pending && to_other_pool), KDA_OK);
      } else {
        for (int64_t n = 0; n < kRows; ++n) {
          EXPECT_EQ(verify(one, n, 1, with_parents, pending, pending && to_other_pool), KDA_OK);
          EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // one_cu is used again
        }
      }
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      const std::vector<uint16_t> round = out.get();
      seen.out.insert(seen.out.end(), round.begin(), round.end());
    }
    seen.pool = pool.get(), seen.other_pool = other_pool.get(), seen.status = status.get()[0];
    return seen;
  }
};

template <class T>
bool same_bits(const std::vector<T>& x, const std::vector<T>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
}

template <class PoolElement>
void compare() {
  for (uint32_t seed = 0; seed < 4; ++seed) {
    World<PoolElement> world(100 * seed);
    const std::vector<PoolElement> before = world.pool.get();
    for (const bool tree : {false, true}) {
      for (const bool to_other_pool : {false, true}) {
        world.draw_parents(true, tree && seed == 3);
        const auto together = world.rounds(true, tree, to_other_pool, before);
        const auto apart = world.rounds(false, tree, to_other_pool, before);
        SCOPED_TRACE("seed " + std::to_string(seed) + (tree ? ", trees" : ", chains") +
                     (to_other_pool ? ", apart" : ""));
        EXPECT_TRUE(same_bits(together.out, apart.out)) << "outputs";
        EXPECT_TRUE(same_bits(together.pool, apart.pool)) << "pool";
        EXPECT_TRUE(same_bits(together.other_pool, apart.other_pool)) << "the other pool";
        EXPECT_FALSE(same_bits(together.pool, before) && !to_other_pool) << "nothing was committed";
        EXPECT_EQ(together.status, apart.status);
        EXPECT_NE(together.status & KDA_DEVICE_BAD_SLOT, 0u);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST_F(Cuda, ManyUnitsGiveTheBitsOfOneRowACall) { compare<float>(); }
TEST_F(Cuda, ManyUnitsGiveTheBitsOfOneRowACallBf16Pool) { compare<uint16_t>(); }

TEST_F(Cuda, ManyUnitsComparisonSeesOneBit) {
  World<float> world(1);
  world.draw_parents(true, false);
  const std::vector<float> before = world.pool.get();
  const auto seen = world.rounds(true, true, false, before);
  auto other = seen;
  other.out[7] ^= 1;
  EXPECT_FALSE(same_bits(seen.out, other.out));
}

}  // namespace
}  // namespace cuda_test
