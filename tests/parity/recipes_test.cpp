// The traps that users of such kernels report most, as exact recipes (C1 to C5; the rest is in recipes_more_test.cpp).
#include <sys/mman.h>

#include "parity/simple.h"

namespace parity {
namespace {

constexpr double kExp = 1e-6;  // what exp() may cost on otherwise dyadic values

KDA_PARITY_SUITE(Recipes);

// ---- C1: a padding index touches a live slot

Tensor numbered_pool(const Spec& spec) {
  const Tensor pool = judge::make_pool(spec, spec.state, 5, 3);
  for (int64_t i = 0; i < 5; ++i) set_slot(pool, i, double(i) + 0.25);
  return pool;
}

enum class Route { decode, decode_cu, extend, extend_snapshot, verify_commit, verify_pending };

// Two rows on the slots given; rows that are null get NaN inputs. Live rows must reach 0.25 s + 0.5 v.
void check_padding(const Target& target, const std::vector<int64_t>& slots, bool null_slot0, Route route) {
  SCOPED_TRACE("slots " + std::to_string(slots[0]) + ", " + std::to_string(slots[1]) + ", null_slot0 " +
               std::to_string(null_slot0) + ", route " + std::to_string(int(route)));
  const Spec spec = scalar_spec();
  PlanOptions options;
  options.null_slot0 = null_slot0;
  const Plan plan(target, spec, options);
  if (!plan.usable()) return;
  const Tensor pool = numbered_pool(spec), before = pool.clone();
  TokenTensors t = scalar_tokens(spec, {4, 4});
  Rows rows = rows_of({1, 1}, slots, pool);
  rows.null_slot0 = null_slot0;
  rows.pass_cu = route != Route::decode;
  poison_null_rows(rows, t);
  const Tensor records = plan.records(4);
  const std::vector<std::byte> empty_records = records.storage();
  Snapshots snapshots;
  snapshots.pool = judge::make_pool(spec, Type::f32, 2, 0);
  snapshots.add(0, 1, 0);
  snapshots.add(1, 1, 1);
  Random r(1);
  snapshots.pack(r);
  const Tensor parents = packed_parents({-1, -1});
  switch (route) {
    case Route::decode:
    case Route::decode_cu:
      ASSERT_TRUE(decode(plan, spec, t, rows));
      break;
    case Route::extend:
      ASSERT_TRUE(extend(plan, spec, t, rows));
      break;
    case Route::extend_snapshot:
      ASSERT_TRUE(extend(plan, spec, t, rows, snapshots));
      break;
    case Route::verify_commit:
      ASSERT_TRUE(verify(plan, spec, t, rows, parents, records));
      ASSERT_EQ(pool.storage(), before.storage());
      ASSERT_TRUE(commit(plan, rows, {0, 0}, records));
      break;
    case Route::verify_pending: {
      ASSERT_TRUE(verify(plan, spec, t, rows, parents, records));
      const Tensor first = Tensor::of(Type::i32, {0, 1}), second = Tensor::of(Type::i32, {2, 3});
      const Tensor tips = Tensor::of(Type::i32, {0, 0});
      const TokenTensors next = t;
      kda_verify_args args{};
      args.struct_size = sizeof(args);
      args.tokens = abi_tokens(spec, next);
      args.rows = rows.abi();
      args.records = records.dl();
      args.record_rows = second.dl();
      args.pending_tips = tips.dl();
      args.pending_record_rows = first.dl();
      ASSERT_TRUE(plan.verify(args));
      break;
    }
  }
  EXPECT_EQ(plan.device_status(), 0u);
  std::vector<int64_t> live;
  for (int i = 0; i < 2; ++i) {
    const bool snapshot_taken = scalar(spec, snapshots.pool, i) == scalar(spec, snapshots.pool, i);
    EXPECT_EQ(snapshot_taken, route == Route::extend_snapshot && !rows.null(i));
    if (rows.null(i)) {
      EXPECT_TRUE(out_zero(spec, t, i)) << "row " << i;
      continue;
    }
    live.push_back(slots[size_t(i)]);
    EXPECT_NEAR(scalar(spec, pool, slots[size_t(i)]), 0.25 * (double(slots[size_t(i)]) + 0.25) + 2, kExp);
    EXPECT_FALSE(std::isnan(t.out.at(i, 0, 0)));
  }
  EXPECT_TRUE(judge::only_slots_changed(before, pool, live));
  if (live.empty()) {
    EXPECT_EQ(records.storage(), empty_records) << "a null row wrote records";
  }
}

TEST_P(Recipes, C1_PaddingNeverTouchesALiveSlot) {
  for (Route route : {Route::decode, Route::decode_cu, Route::extend, Route::extend_snapshot, Route::verify_commit,
                      Route::verify_pending}) {
    for (const auto& slots :
         std::vector<std::vector<int64_t>>{{-1, 3}, {3, -1}, {-1, -1}, {INT32_MIN, 3}, {0, 3}, {-1, 0}})
      for (bool null_slot0 : {false, true}) check_padding(GetParam(), slots, null_slot0, route);
  }
}

TEST_P(Recipes, C1_PaddingNeverTouchesALiveWindow) {
  Spec spec = scalar_spec();
  const Plan plan(GetParam(), spec);
  ASSERT_TRUE(plan.usable());
  const int64_t C = spec.channels();
  for (int route = 0; route < 3; ++route) {
    const Tensor pool = judge::make_conv_pool(spec, spec.conv_state, C, 5, 2);
    for (int64_t s = 0; s < 5; ++s) set_slot(pool, s, double(s) + 0.25);
    const Tensor before = pool.clone();
    ConvBatch batch;
    batch.spec = spec;
    batch.rows = rows_of({1, 1}, {-1, 3}, pool);
    batch.rows.pass_cu = route != 0;
    batch.x = Tensor(spec.io, {2, C});
    batch.weight = Tensor(spec.conv_weight, {C, 4});
    for (int64_t c = 0; c < C; ++c) {
      batch.x.set(9, 1, c);  // row 0 stays NaN
      for (int w = 0; w < 4; ++w) batch.weight.set(1, c, w);
    }
    const Tensor out(spec.io, {2, C}), records = plan.conv_records(2, C);
    kda_conv_args args = batch.args(out);
    if (route < 2) {
      ASSERT_TRUE(route == 0 ? plan.conv_decode(args) : plan.conv_extend(args));
    } else {
      args.records = records.dl();
      ASSERT_TRUE(plan.conv_verify(args));
      const Tensor tips = Tensor::of(Type::i32, {0, 0});
      ASSERT_TRUE(plan.conv_commit(commit_args(batch.rows, tips, records)));
    }
    EXPECT_TRUE(judge::only_slots_changed(before, pool, {3}));
    EXPECT_EQ(judge::read_window(spec, pool, 3, 0), (std::vector<double>{3.25, 3.25, 9}));
    for (int64_t c = 0; c < C; ++c) {
      EXPECT_EQ(out.at(0, c), 0);
      EXPECT_NEAR(out.at(1, c), judge::silu(3 * 3.25 + 9), 1e-4);
    }
  }
}

// ---- C1b: index width

// Reserved address space far beyond 2^31 elements; only what is touched costs memory.
struct Reserve {
  void* data;
  size_t bytes;
  explicit Reserve(size_t n) : bytes(n) {
    data = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Reserve() {
    if (data != MAP_FAILED) munmap(data, bytes);
  }
};

TEST_P(Recipes, C1b_SlotsBeyond32Bits) {
  if (GetParam().backend == KDA_BACKEND_CUDA) GTEST_SKIP() << "beyond what device mirrors can do";
  const Spec spec = scalar_spec();
  const Plan plan(GetParam(), spec);
  ASSERT_TRUE(plan.usable());
  const int64_t stride = (int64_t{1} << 31) + 1024;  // elements: slot 1 wraps in int32 and in uint32 bytes
  const Reserve memory(size_t((2 * stride + 16) * 4));
  if (memory.data == MAP_FAILED) GTEST_SKIP() << "cannot reserve " << memory.bytes << " bytes of address space";
  float* base = static_cast<float*>(memory.data);
  for (int i = 0; i < 16; ++i) base[2 * stride + i] = 8;
  int64_t shape[] = {3, 1, 4, 4}, strides[] = {stride, 16, 4, 1};
  DLTensor pool{base, {kDLCPU, 0}, 4, {kDLFloat, 32, 1}, shape, strides, 0};
  const auto with_pool = [&](kda_rows rows) {
    rows.state = &pool;
    return rows;
  };
  const Rows rows = rows_of({1}, {2}, Tensor());
  TokenTensors t = scalar_tokens(spec, {4});
  kda_decode_args decode_args{};
  decode_args.struct_size = sizeof(decode_args);
  decode_args.tokens = abi_tokens(spec, t);
  decode_args.rows = with_pool(rows.abi());
  ASSERT_TRUE(plan.decode(decode_args));
  EXPECT_NEAR(base[2 * stride], 4, kExp);
  kda_verify_args verify_args{};
  verify_args.struct_size = sizeof(verify_args);
  verify_args.tokens = abi_tokens(spec, t);
  verify_args.rows = with_pool(rows.abi());
  const Tensor records = plan.records(1), tips = Tensor::of(Type::i32, {0});
  verify_args.records = records.dl();
  ASSERT_TRUE(plan.verify(verify_args));
  kda_commit_args commit = commit_args(rows, tips, records);
  commit.rows = with_pool(commit.rows);
  ASSERT_TRUE(plan.commit(commit));
  EXPECT_NEAR(base[2 * stride], 3, kExp);
  const Tensor from = Tensor::of(Type::i32, {2}), to = Tensor::of(Type::i32, {1});
  kda_move_args move{};
  move.struct_size = sizeof(move);
  move.source = &pool;
  move.source_slots = from.dl();
  move.destination_slots = to.dl();
  ASSERT_TRUE(plan.move(move));
  EXPECT_NEAR(base[stride], 3, kExp);
  EXPECT_EQ(base[0], 0);
}

TEST_P(Recipes, C1b_TokensBeyond32Bits) {
  if (GetParam().backend == KDA_BACKEND_CUDA) GTEST_SKIP() << "beyond what device mirrors can do";
  const Spec spec = scalar_spec();
  const Plan plan(GetParam(), spec);
  ASSERT_TRUE(plan.usable());
  const int64_t stride = (int64_t{1} << 31) + 512;
  const Reserve memory(size_t((2 * stride + 64) * 4));
  if (memory.data == MAP_FAILED) GTEST_SKIP() << "cannot reserve " << memory.bytes << " bytes of address space";
  float* base = static_cast<float*>(memory.data);
  TokenTensors t = scalar_tokens(spec, {4, 8, 16});
  // v and out side by side in one row of that stride.
  for (int i = 0; i < 3; ++i)
    for (int c = 0; c < 4; ++c) base[i * stride + c] = float(t.v.at(i, 0, c));
  int64_t shape[] = {3, 1, 4}, strides[] = {stride, 4, 1};
  DLTensor v{base, {kDLCPU, 0}, 3, {kDLFloat, 32, 1}, shape, strides, 0}, out = v;
  out.data = base + 4;
  const Tensor pool = constant_pool(spec, 1, 0);
  const Rows rows = rows_of({3}, {0}, pool);
  kda_extend_args args{};
  args.struct_size = sizeof(args);
  args.tokens = abi_tokens(spec, t);
  args.tokens.v = &v;
  args.tokens.out = &out;
  args.rows = rows.abi();
  ASSERT_TRUE(plan.extend(args));
  const double want[] = {2, 4.5, 9.125};
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(base[i * stride + 4], want[i], kExp * 10) << i;
}

// ---- C2: tree verify and commit

TEST_P(Recipes, C2_TreeStates) {
  const Spec spec = scalar_spec();
  const Plan plan(GetParam(), spec);
  ASSERT_TRUE(plan.usable());
  const Tensor pool = constant_pool(spec, 2, 8), before = pool.clone();
  const Rows rows = rows_of({5, 4}, {0, 1}, pool);
  const TokenTensors t = scalar_tokens(spec, {4, 8, 16, 0, 32, 4, 8, 16, 0});
  const Tensor records = plan.records(2), states = judge::make_pool(spec, Type::f32, 2 * 6, 0);
  const int64_t K = spec.form.K, V = spec.form.V;
  const Tensor states5 = states.view({2, 6, 1, V, K}, {6 * V * K, V * K, V * K, K, 1}, 0);
  ASSERT_TRUE(verify(plan, spec, t, rows, packed_parents({-1, 0, 0, 1, 2, -1, -1, 0, 1}), records, states5));
  const double want[] = {4, 5, 9, 1.25, 18.25}, second[] = {4, 6, 9, 1.5};
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(scalar(spec, states, i), want[i], 20 * kExp) << "node " << i;
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(scalar(spec, states, 6 + i), second[i], 20 * kExp) << "second row, node " << i;
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(t.out.at(i, 0, 0), want[i], 20 * kExp);
  EXPECT_EQ(pool.storage(), before.storage()) << "the live state stays until commit";
  ASSERT_TRUE(commit(plan, rows, {2, 3}, records));
  EXPECT_NEAR(scalar(spec, pool, 0), 9, 20 * kExp);
  EXPECT_NEAR(scalar(spec, pool, 1), 1.5, 20 * kExp);
}

TEST_P(Recipes, C2_TreeConvolution) {
  for (bool channel_major : {false, true}) {
    Spec spec = scalar_spec();
    spec.channel_major = channel_major;
    const Plan plan(GetParam(), spec);
    ASSERT_TRUE(plan.usable());
    const int64_t C = spec.channels();
    const Tensor pool = judge::make_conv_pool(spec, Type::f32, C, 2, 1);
    ConvBatch batch;
    batch.spec = spec;
    batch.rows = rows_of({5}, {1}, pool);
    batch.x = Tensor(Type::f32, {5, C});
    batch.weight = Tensor(Type::f32, {C, 4});
    for (int64_t c = 0; c < C; ++c) {
      for (int w = 0; w < 4; ++w) batch.weight.set(std::pow(10, w), c, w);
      for (int i = 0; i < 5; ++i) batch.x.set(4 + i, i, c);
      for (int w = 0; w < 3; ++w) channel_major ? pool.set(w + 1, 1, c, w) : pool.set(w + 1, 1, w, c);
    }
    const Tensor before = pool.clone(), out(Type::f32, {5, C}), records = plan.conv_records(1, C);
    const Tensor parents = packed_parents({-1, 0, 0, 1, 2}), tips = Tensor::of(Type::i32, {2});
    kda_conv_args args = batch.args(out);
    args.parents = parents.dl();
    args.records = records.dl();
    ASSERT_TRUE(plan.conv_verify(args));
    const double want[] = {4321, 5432, 6432, 7543, 8643};
    for (int i = 0; i < 5; ++i)
      for (int64_t c = 0; c < C; ++c) EXPECT_NEAR(out.at(i, c), want[i], 1e-2) << "node " << i;
    EXPECT_EQ(pool.storage(), before.storage());
    ASSERT_TRUE(plan.conv_commit(commit_args(batch.rows, tips, records)));
    for (int64_t c = 0; c < C; ++c) EXPECT_EQ(judge::read_window(spec, pool, 1, c), (std::vector<double>{3, 4, 6}));
  }
}

// ---- C3: the commit index

TEST_P(Recipes, C3_CommitOfEveryLength) {
  const Spec spec = scalar_spec();
  const Plan plan(GetParam(), spec);
  ASSERT_TRUE(plan.usable());
  const double want[] = {2, 2.5, 2.625, 2.65625, 2.6640625};
  for (int accepted = 1; accepted <= 5; ++accepted) {
    const Tensor pool = constant_pool(spec, 1, 0);
    const Rows rows = rows_of({5}, {0}, pool);
    const TokenTensors t = scalar_tokens(spec, {4, 4, 4, 4, 4});
    const Tensor records = plan.records(1), states = judge::make_pool(spec, Type::f32, 5, 0);
    std::fill(records.storage().begin(), records.storage().end(), std::byte{0x3e});
    std::fill(states.storage().begin(), states.storage().end(), std::byte{0x3e});
    const int64_t K = spec.form.K, V = spec.form.V;
    ASSERT_TRUE(verify(plan, spec, t, rows, Tensor(), records,
                       states.view({1, 5, 1, V, K}, {5 * V * K, V * K, V * K, K, 1}, 0)));
    ASSERT_TRUE(commit(plan, rows, {accepted - 1}, records));
    EXPECT_NEAR(scalar(spec, pool, 0), want[accepted - 1], kExp * 3);
    for (int i = 0; i < 5; ++i) EXPECT_NEAR(scalar(spec, states, i), want[i], kExp * 3);
    if (accepted != 3) continue;
    ASSERT_TRUE(decode(plan, spec, scalar_tokens(spec, {4}), rows_of({1}, {0}, pool)));
    EXPECT_NEAR(scalar(spec, pool, 0), 2.65625, kExp * 3) << "a decode without drafts after accepting three";
  }
}

TEST_P(Recipes, C3_AcceptingOnlyTheRootEqualsDecode) {
  Random r(33);
  Spec spec = scalar_spec();
  spec.form = {};
  spec.form.K = 16;
  spec.form.V = 8;
  fit_head_sizes(GetParam(), &spec);
  for (Type state : {Type::f32, Type::bf16}) {
    spec.state = state;
    const Plan plan(GetParam(), spec);
    ASSERT_TRUE(plan.usable());
    const Tensor speculated = filled_pool(r, spec, 1, 0), plain = speculated.clone();
    for (int round = 0; round < 64; ++round) {
      TokenTensors t = judge::random_tokens(r, spec, 4, false);
      const TokenTensors root = gather(spec, t, {0});
      const Rows rows = rows_of({4}, {0}, speculated);
      const Tensor records = plan.records(1);
      ASSERT_TRUE(verify(plan, spec, t, rows, packed_parents({-1, 0, 0, 1}), records));
      ASSERT_TRUE(commit(plan, rows, {0}, records));
      ASSERT_TRUE(decode(plan, spec, root, rows_of({1}, {0}, plain)));
      ASSERT_EQ(token_bits(t.out, 0), token_bits(root.out, 0)) << "round " << round;
      ASSERT_EQ(speculated.storage(), plain.storage()) << "round " << round;
    }
  }
}

// ---- C4: a snapshot at the wrong depth

TEST_P(Recipes, C4_SnapshotDepth) {
  const Spec spec = scalar_spec();
  const Plan plan(GetParam(), spec);
  ASSERT_TRUE(plan.usable());
  std::vector<double> v(130, 0);
  v[128] = v[129] = 64;
  const Tensor pool = constant_pool(spec, 2, 0), snapshots_pool = judge::make_pool(spec, Type::f32, 3, 0);
  Snapshots snapshots;
  snapshots.pool = snapshots_pool;
  snapshots.add(0, 128, 1);
  snapshots.add(0, 129, 2);
  Random r(1);
  snapshots.pack(r);
  ASSERT_TRUE(extend(plan, spec, scalar_tokens(spec, v), rows_of({130}, {0}, pool), snapshots));
  EXPECT_EQ(scalar(spec, snapshots_pool, 1), 0);
  EXPECT_NEAR(scalar(spec, snapshots_pool, 2), 32, 32 * kExp);
  EXPECT_TRUE(std::isnan(scalar(spec, snapshots_pool, 0)));
  EXPECT_NEAR(scalar(spec, pool, 0), 40, 40 * kExp);
  const Tensor from = Tensor::of(Type::i32, {1}), to = Tensor::of(Type::i64, {1});
  kda_move_args move{};
  move.struct_size = sizeof(move);
  move.source = snapshots_pool.dl();
  move.destination = pool.dl();
  move.source_slots = from.dl();
  move.destination_slots = to.dl();
  ASSERT_TRUE(plan.move(move));
  ASSERT_TRUE(extend(plan, spec, scalar_tokens(spec, {64, 64}), rows_of({2}, {1}, pool)));
  EXPECT_NEAR(scalar(spec, pool, 1), 40, 40 * kExp) << "restored at 128 and continued";
}

TEST_P(Recipes, C4_SnapshotInsideAWindow) {
  const Spec spec = scalar_spec();
  const Plan plan(GetParam(), spec);
  ASSERT_TRUE(plan.usable());
  // 254 tokens are committed, the page ends at 256, four nodes are drafted.
  const Tensor pool = constant_pool(spec, 1, 8), page = judge::make_pool(spec, Type::f32, 1, 0);
  const Rows rows = rows_of({4}, {0}, pool);
  const Tensor records = plan.records(1);
  ASSERT_TRUE(verify(plan, spec, scalar_tokens(spec, {4, 4, 4, 4}), rows, Tensor(), records));
  Snapshots at256;
  at256.pool = page;
  at256.add(0, 1, 0);
  Random r(1);
  at256.pack(r);
  const Tensor before = pool.clone(), root = Tensor::of(Type::i32, {0});
  // Rejected before the page's end: nothing may be filed. A list on the host that says so is refused; a list in device
  // memory is skipped by the kernel (tests/cuda).
  if (GetParam().backend != KDA_BACKEND_CUDA) {
    kda_error error{};
    error.struct_size = sizeof(error);
    EXPECT_EQ(plan.status(kda_commit, commit_args(rows, root, records, at256), &error), KDA_E_SNAPSHOT);
    EXPECT_TRUE(std::isnan(scalar(spec, page, 0)));
    EXPECT_EQ(pool.storage(), before.storage());
  }
  ASSERT_TRUE(commit(plan, rows, {2}, records, at256));
  EXPECT_NEAR(scalar(spec, page, 0), 3, 3 * kExp) << "the state at 256";
  EXPECT_NEAR(scalar(spec, pool, 0), 2.75, 3 * kExp) << "the live state at 257";
}

// ---- C5: one prompt, many routes

TEST_P(Recipes, C5_OnePromptManyRoutes) {
  for (Type io : {Type::f32, Type::bf16}) {
    Random r(5);
    Spec spec;
    spec.form.H = spec.form.HV = 2;
    spec.form.K = 32;
    spec.form.V = 24;
    fit_head_sizes(GetParam(), &spec);
    spec.io = spec.gate_type = spec.beta_type = io;
    const Plan plan(GetParam(), spec);
    ASSERT_TRUE(plan.usable());
    const int T = 257;
    const TokenTensors all = judge::random_tokens(r, spec, T, false);
    State judged = judge::zero_state(spec.form);
    std::vector<std::vector<double>> judged_out;
    for (int i = 0; i < T; ++i) judged_out.push_back(judge::advance(spec.form, all.values, i, &judged));
    std::vector<Bits> first;
    Bits first_state;
    const auto finish = [&](const char* route, const std::vector<Bits>& out, const Tensor& pool, int64_t slot) {
      if (first.empty()) {
        first = out;
        first_state = judge::slot_bits(pool, slot);
        judge::Measure state;
        state.add(judge::read_state(spec, pool, slot), judged);
        EXPECT_TRUE(state.within(judge::exact_state_limit(false))) << route << ": " << state.text();
      }
      EXPECT_TRUE(out == first) << route << ": outputs differ from the one-shot prompt";
      EXPECT_TRUE(judge::slot_bits(pool, slot) == first_state) << route << ": the final state differs";
    };
    const auto piece = [&](int begin, int end) {
      std::vector<int64_t> tokens;
      for (int i = begin; i < end; ++i) tokens.push_back(i);
      return gather(spec, all, tokens);
    };
    const auto chunks = [&](const char* route, const std::vector<int>& lengths, int start, const Tensor& pool) {
      std::vector<Bits> out(first.begin(), first.begin() + start);
      int at = start;
      for (int n : lengths) {
        const TokenTensors t = piece(at, at + n);
        ASSERT_TRUE(n == 1 ? decode(plan, spec, t, rows_of({1}, {0}, pool))
                           : extend(plan, spec, t, rows_of({n}, {0}, pool)));
        for (int i = 0; i < n; ++i) out.push_back(token_bits(t.out, i));
        at += n;
      }
      ASSERT_EQ(at, T);
      finish(route, out, pool, 0);
    };
    chunks("one shot", {257}, 0, constant_pool(spec, 1, 0));
    chunks("chunks of 64", {64, 64, 64, 64, 1}, 0, constant_pool(spec, 1, 0));
    chunks("63 + 1 + 193", {63, 1, 193}, 0, constant_pool(spec, 1, 0));
    chunks("token by token", std::vector<int>(257, 1), 0, constant_pool(spec, 1, 0));

    // Resume from the snapshot at 128.
    const Tensor pool = constant_pool(spec, 1, 0), page = judge::make_pool(spec, Type::f32, 1, 0);
    Snapshots snapshots;
    snapshots.pool = page;
    snapshots.add(0, 128, 0);
    snapshots.pack(r);
    ASSERT_TRUE(extend(plan, spec, piece(0, 200), rows_of({200}, {0}, pool), snapshots));
    chunks("resumed at 128", {129}, 128, page);

    // Verify windows of five, all accepted; the last has two.
    const Tensor windows = constant_pool(spec, 1, 0);
    std::vector<Bits> out;
    for (int at = 0; at < T; at += 5) {
      const int n = std::min(5, T - at);
      const TokenTensors t = piece(at, at + n);
      const Rows rows = rows_of({n}, {0}, windows);
      const Tensor records = plan.records(1);
      ASSERT_TRUE(verify(plan, spec, t, rows, Tensor(), records));
      ASSERT_TRUE(commit(plan, rows, {n - 1}, records));
      for (int i = 0; i < n; ++i) out.push_back(token_bits(t.out, i));
    }
    finish("verify windows of five", out, windows, 0);
    if (HasFailure()) return;
  }
}

TEST_P(Recipes, C5b_SlowDecay) {
  Spec spec = scalar_spec();
  spec.form.K = spec.form.V = 1;
  fit_head_sizes(GetParam(), &spec);
  const Plan plan(GetParam(), spec);
  ASSERT_TRUE(plan.usable());
  const auto decays = [&](double alpha, int steps) {
    const Tensor pool = constant_pool(spec, 1, 1);
    const TokenTensors t = scalar_tokens(spec, {1}, {alpha}, {0});
    const Rows rows = rows_of({1}, {0}, pool);
    for (int i = 0; i < steps; ++i)
      if (!decode(plan, spec, t, rows)) break;
    return scalar(spec, pool, 0);
  };
  EXPECT_NEAR(decays(0.99992, 4096), 0.72058, 1e-4);
  EXPECT_NEAR(decays(0.997, 1024), 0.046115, 1e-5);
}

TEST_P(Recipes, C5b_StepSizeIsNotRoundedToTheInputsDtype) {
  for (const auto& [logit, beta] : {std::pair{0.5, 0.622459}, std::pair{-0.5, 0.377541}}) {
    Spec spec = scalar_spec();
    spec.io = spec.gate_type = spec.beta_type = Type::bf16;
    spec.form.beta = judge::Beta::sigmoid;
    const Plan plan(GetParam(), spec);
    ASSERT_TRUE(plan.usable());
    const Tensor pool = constant_pool(spec, 1, 0);
    ASSERT_TRUE(decode(plan, spec, scalar_tokens(spec, {1}, {0.5}, {logit}), rows_of({1}, {0}, pool)));
    EXPECT_NEAR(scalar(spec, pool, 0), beta, 1e-6);
  }
}

}  // namespace
}  // namespace parity
