// What is legal is accepted: every form of tensors and lists that the contract allows, and every edge of the rules.
#include <gtest/gtest.h>

#include "api/world.h"

namespace kda_test {
namespace {

// Runs a call and reports the refusal's text.
#define EXPECT_ACCEPTED(call)                   \
  do {                                          \
    kda_error error = kda::args<kda_error>();   \
    EXPECT_EQ((call), KDA_OK) << error.message; \
  } while (false)

struct AcceptanceTest : testing::Test {
  World w;
  std::vector<float> values(const kda::Tensor& t, int64_t count) { return {t.data<float>(), t.data<float>() + count}; }
  kda_status extend(const kda_extend_args& args, kda_error* error) {
    return kda_extend(w.plan.get(), &args, &w.resources, error);
  }
};

TEST_F(AcceptanceTest, EveryRightCall) {
  const auto call = [&](auto function, const auto& args) {
    kda_error error = kda::args<kda_error>();
    EXPECT_EQ(function(w.plan.get(), &args, &w.resources, &error), KDA_OK) << error.message;
  };
  call(kda_extend, w.extend_args());
  call(kda_decode, w.decode_args());
  call(kda_verify, w.verify_args());
  call(kda_verify, w.pending_args());
  call(kda_commit, w.commit_args());
  call(kda_move, w.move_args());
  call(kda_conv_extend, w.conv_args());
  call(kda_conv_commit, w.conv_commit_args());
  auto decode = w.conv_args();
  decode.rows.cu_seqlens = nullptr;
  const kda::Tensor x3 = w.x.slice(0, 0, 3), out3 = w.conv_out.slice(0, 0, 3);
  decode.x = x3, decode.out = out3;
  call(kda_conv_decode, decode);
  auto move = w.move_args();
  move.source = w.conv_state;
  call(kda_conv_move, move);
  EXPECT_EQ(w.device_status, 0u);
}

TEST_F(AcceptanceTest, ShorterStructsOfOlderCallers) {
  auto args = w.extend_args();
  args.struct_size = offsetof(kda_extend_args, snapshots);
  args.snapshots.rows = w.x;  // beyond the caller's struct: not read
  EXPECT_ACCEPTED(extend(args, &error));
}

struct NewerArgs {
  kda_decode_args known;
  char unknown[24];
};

TEST_F(AcceptanceTest, LongerStructsOfNewerCallersWithoutNewFields) {
  NewerArgs newer{w.decode_args(), {}};
  newer.known.struct_size = sizeof(newer);
  EXPECT_ACCEPTED(kda_decode(w.plan.get(), &newer.known, &w.resources, &error));
  newer.unknown[23] = 1;
  EXPECT_EQ(kda_decode(w.plan.get(), &newer.known, &w.resources, nullptr), KDA_E_STRUCT_SIZE);
}

TEST_F(AcceptanceTest, NoRowsAndNoTokens) {
  auto args = w.extend_args();
  args.tokens = w.tokens(0);
  const List none{0}, empty_rows{0, 0, 0, 0}, empty(std::vector<int32_t>{});
  args.snapshots = {};
  args.rows.cu_seqlens = none, args.rows.slots = empty;
  EXPECT_ACCEPTED(extend(args, &error));
  args.rows.cu_seqlens = empty_rows, args.rows.slots = w.slots;
  EXPECT_ACCEPTED(extend(args, &error));
  auto decode = w.decode_args();
  decode.tokens = w.tokens(0);
  decode.rows.slots = empty;
  EXPECT_ACCEPTED(kda_decode(w.plan.get(), &decode, &w.resources, &error));
  auto move = w.move_args();
  move.source_slots = move.destination_slots = empty;
  EXPECT_ACCEPTED(kda_move(w.plan.get(), &move, &w.resources, &error));
}

TEST_F(AcceptanceTest, NullDataOfEmptyTensors) {
  auto args = w.extend_args();
  const auto none = [](std::initializer_list<int64_t> shape) { return kda::Tensor(nullptr, KDA_FP32, shape); };
  const kda::Tensor q = none({0, World::H, World::K}), v = none({0, World::HV, World::V}),
                    a = none({0, World::HV, World::K}), b = none({0, World::HV});
  const List cu{0};
  args.tokens.q = q, args.tokens.k = q, args.tokens.v = v, args.tokens.a = a, args.tokens.b = b, args.tokens.out = v;
  args.rows = {}, args.snapshots = {};
  args.rows.cu_seqlens = cu;
  EXPECT_ACCEPTED(extend(args, &error));
}

TEST_F(AcceptanceTest, ForksReadOneSlotAndWriteOthers) {
  auto args = w.extend_args();
  const List same{5, 5, 5}, to{6, 8, 9};
  args.rows.slots = same, args.rows.dst_slots = to;
  EXPECT_ACCEPTED(extend(args, &error));
  const List in_place_too{5, 8, 9};  // the first row would write what the others read
  args.rows.dst_slots = in_place_too;
  EXPECT_EQ(extend(args, nullptr), KDA_E_SLOT_ALIASED);
}

TEST_F(AcceptanceTest, NullRowsAreNotChecked) {
  auto args = w.extend_args();
  w.slots[0] = -3;
  const List to{99, 2, 3};
  args.rows.dst_slots = to;                                                        // of the null row: beyond the pool
  w.snapshot_rows[0] = 0, w.snapshot_positions[0] = 77, w.snapshot_slots[0] = 99;  // of the null row
  w.snapshot_slots[1] = 8;
  EXPECT_ACCEPTED(extend(args, &error));
  auto verify = w.verify_args();
  const List parents{9, 9, 9, -1, 0, 0, 1, 7, 7, 7, 7, 7};
  verify.parents = parents;
  w.record_rows[0] = 1000;
  EXPECT_ACCEPTED(kda_verify(w.plan.get(), &verify, &w.resources, &error));
}

TEST_F(AcceptanceTest, NegativeEntriesSkip) {
  auto args = w.extend_args();
  const List to{-1, -1, 3}, rows{-1, 0, 0}, positions{0, -1, 0}, slots{6, 6, -6};
  args.rows.dst_slots = to;
  args.snapshots = {rows, positions, slots, nullptr};
  EXPECT_ACCEPTED(extend(args, &error));
  auto move = w.move_args();
  const List from{-1, 2, 3}, onto{4, -1, 4};
  move.source_slots = from, move.destination_slots = onto;
  EXPECT_ACCEPTED(kda_move(w.plan.get(), &move, &w.resources, &error));
}

TEST_F(AcceptanceTest, FreshRowsNeedNoPool) {
  auto args = w.extend_args();
  args.rows = {}, args.snapshots = {};
  args.rows.cu_seqlens = w.cu;
  EXPECT_ACCEPTED(extend(args, &error));
  const List to{0, 1, 2};
  args.rows.dst_slots = to, args.rows.dst_state = w.other_pool;
  EXPECT_ACCEPTED(extend(args, &error));
}

TEST_F(AcceptanceTest, AbsentParameters) {
  auto args = w.extend_args();
  args.tokens.dt_bias = nullptr;
  EXPECT_ACCEPTED(extend(args, &error));
  kda_problem problem = World::default_problem();
  problem.gate = KDA_GATE_BOUNDED;
  World bounded(problem);
  args = bounded.extend_args();
  args.tokens.A_log = nullptr;
  EXPECT_ACCEPTED(kda_extend(bounded.plan.get(), &args, &bounded.resources, &error));
}

TEST_F(AcceptanceTest, LeadingOnesAndParameterShapes) {
  auto args = w.extend_args();
  const int64_t T = World::kTokens, H = World::H, HV = World::HV, K = World::K, V = World::V;
  const kda::Tensor q(w.q.data(), KDA_FP32, {1, T, H, K}), a(w.a.data(), KDA_FP32, {1, T, HV * K}),
      b(w.b.data(), KDA_FP32, {1, 1, T, HV}), A_log(w.A_log.data(), KDA_FP32, {1, 1, HV, 1}),
      dt_bias(w.dt_bias.data(), KDA_FP32, {HV, K}), state(w.state.data(), KDA_FP32, {1, World::kSlots, HV, V, K}),
      slots(w.slots.data(), kda::Element::int32, {3, 1}), cu(w.cu.data(), kda::Element::int32, {1, 4});
  args.tokens.q = q, args.tokens.a = a, args.tokens.b = b, args.tokens.A_log = A_log, args.tokens.dt_bias = dt_bias;
  args.rows.state = state, args.rows.slots = slots, args.rows.cu_seqlens = cu;
  EXPECT_ACCEPTED(extend(args, &error));
}

TEST_F(AcceptanceTest, OneBufferPackedByToken) {
  // A row holds q | k | v | out side by side, then by head; q, k, v are read and out is written in place of nothing.
  const int64_t T = World::kTokens, H = World::H, HV = World::HV, K = World::K, V = World::V;
  const int64_t row = 2 * H * K + 2 * HV * V;
  const kda::Tensor packed = w.tensor({T, row});
  float* p = packed.data<float>();
  const kda::Tensor q(p, KDA_FP32, {T, H, K}, {row, K, 1}), k(p + H * K, KDA_FP32, {T, H, K}, {row, K, 1}),
      v(p + 2 * H * K, KDA_FP32, {T, HV, V}, {row, V, 1}),
      out(p + 2 * H * K + HV * V, KDA_FP32, {T, HV, V}, {row, V, 1});
  auto args = w.extend_args();
  args.tokens.q = q, args.tokens.k = k, args.tokens.v = v, args.tokens.out = out;
  EXPECT_ACCEPTED(extend(args, &error));

  // By head: v and out of a head lie side by side, so their strides interleave at two levels.
  const kda::Tensor by_head = w.tensor({T, HV, 2 * V + 3});
  const int64_t head = 2 * V + 3;
  const kda::Tensor v2(by_head.data(), KDA_FP32, {T, HV, V}, {HV * head, head, 1}),
      out2(by_head.data<float>() + V + 1, KDA_FP32, {T, HV, V}, {HV * head, head, 1}),
      out3(by_head.data<float>() + V - 1, KDA_FP32, {T, HV, V}, {HV * head, head, 1});
  args.tokens.v = v2, args.tokens.out = out2;
  EXPECT_ACCEPTED(extend(args, &error));
  args.tokens.out = out3;  // the first element of out is the last of v
  EXPECT_EQ(extend(args, nullptr), KDA_E_OVERLAP);
}

TEST_F(AcceptanceTest, StridesOfListsAndPools) {
  auto args = w.extend_args();
  std::vector<int64_t> wide{7, -1, 1, -1, 5};  // slots backwards, every other entry
  const kda::Tensor slots(&wide[4], kda::Element::int64, {3}, {-2});
  std::vector<uint8_t> flags{1, 0};
  const kda::Tensor has_state(flags.data(), kda::Element::boolean, {3}, {0});
  const int64_t one = World::HV * World::V * World::K;
  const kda::Tensor memory = w.tensor({4, 3, one});
  const kda::Tensor pool(memory.data<float>() + one, KDA_FP32, {4, World::HV, World::V, World::K},
                         {3 * one, World::V * World::K, World::K, 1});
  const List to{3, 2, 0};
  args.rows.slots = slots, args.rows.has_state = has_state, args.rows.dst_slots = to, args.rows.dst_state = pool;
  EXPECT_ACCEPTED(extend(args, &error));
  const kda::Tensor reversed(w.q.data<float>() + (World::kTokens - 1) * World::H * World::K, KDA_FP32,
                             {World::kTokens, World::H, World::K}, {-World::H * World::K, World::K, 1});
  const kda::Tensor broadcast(w.k.data(), KDA_FP32, {World::kTokens, World::H, World::K}, {0, 0, 1});
  args.tokens.q = reversed, args.tokens.k = broadcast;
  EXPECT_ACCEPTED(extend(args, &error));
}

TEST_F(AcceptanceTest, InterleavedSnapshotAndStatePools) {
  // One record of memory per sequence: its state, then its snapshot.
  const int64_t one = World::HV * World::V * World::K;
  const kda::Tensor memory = w.tensor({World::kSlots, 2, one});
  const auto view = [&](int64_t first) {
    return kda::Tensor(memory.data<float>() + first, KDA_FP32, {World::kSlots, World::HV, World::V, World::K},
                       {2 * one, World::V * World::K, World::K, 1});
  };
  const kda::Tensor state = view(0), snapshots = view(one);
  auto args = w.extend_args();
  const List same_numbers{5, 1, 7};
  args.rows.state = state;
  args.snapshots.pool = snapshots, args.snapshots.slots = same_numbers;
  EXPECT_ACCEPTED(extend(args, &error));
}

TEST_F(AcceptanceTest, EmptyRowsAndRowsWithoutATipShareASlot) {
  auto args = w.extend_args();
  const List cu{0, 3, 3, 3}, slots{5, 1, 1};
  args.rows.cu_seqlens = cu, args.rows.slots = slots, args.snapshots = {};
  EXPECT_ACCEPTED(extend(args, &error));
  auto commit = w.commit_args();
  const List tips{2, -1, -1};
  commit.rows.slots = slots, commit.tips = tips;
  EXPECT_ACCEPTED(kda_commit(w.plan.get(), &commit, &w.resources, &error));
}

TEST_F(AcceptanceTest, CommitSnapshotsAlongThePath) {
  auto verify = w.verify_args();
  const List parents{-1, 0, 0, -1, 0, 1, 0, -1, -1, -1, -1, -1};
  verify.parents = parents;
  w.plan.verify(verify, &w.resources);
  auto commit = kda::args<kda_commit_args>();
  commit.rows = w.rows();
  commit.rows.cu_seqlens = nullptr;
  const List tips{2, -1, 2}, rows{0, 2, 2}, nodes{0, 1, 2}, slots{2, 3, 4}, off_path{1, 1, 2};
  commit.tips = tips, commit.records = w.records, commit.record_rows = w.record_rows;
  commit.snapshots = {rows, nodes, slots, nullptr};
  EXPECT_ACCEPTED(kda_commit(w.plan.get(), &commit, &w.resources, &error));
  commit.snapshots.positions = off_path;  // node 1 of row 0 is a sibling of its tip
  EXPECT_EQ(kda_commit(w.plan.get(), &commit, &w.resources, nullptr), KDA_E_SNAPSHOT);
}

TEST_F(AcceptanceTest, ARecordThatDoesNotMatchIsAStatusBit) {
  auto commit = w.commit_args();
  w.record_memory.data()[12] ^= std::byte{1};  // the geometry in row 0's header
  w.tips[0] = 50;                              // not checked against a header of something else
  EXPECT_ACCEPTED(kda_commit(w.plan.get(), &commit, &w.resources, &error));
  EXPECT_EQ(w.device_status, KDA_DEVICE_BAD_RECORD);
}

TEST_F(AcceptanceTest, ParentsByRowAndSingleRoot) {
  auto verify = w.verify_args();
  std::vector<int32_t> table(3 * 6, 77);  // a wider table than the longest row
  for (int row = 0; row < 3; ++row) {
    for (int node = 0; node < 4; ++node) table[static_cast<size_t>(row * 6 + node)] = node - 1;
  }
  const kda::Tensor parents(table.data(), kda::Element::int32, {3, 5}, {6, 1});
  verify.parents = parents;
  EXPECT_ACCEPTED(kda_verify(w.plan.get(), &verify, &w.resources, &error));
  table[0] = 0;
  EXPECT_EQ(kda_verify(w.plan.get(), &verify, &w.resources, nullptr), KDA_E_PARENT);
  kda_problem problem = World::default_problem();
  problem.single_root = 1;
  World single(problem);
  verify = single.verify_args();
  verify.parents = parents;
  EXPECT_ACCEPTED(kda_verify(single.plan.get(), &verify, &single.resources, &error));
}

TEST_F(AcceptanceTest, PendingRowsMayBeNegative) {
  auto args = w.pending_args();
  w.tips[0] = -1;
  w.pending_record_rows[2] = -1;
  EXPECT_ACCEPTED(kda_verify(w.plan.get(), &args, &w.resources, &error));
}

TEST_F(AcceptanceTest, NodeSlotsMayNameTheRowsOwnSource) {
  auto args = w.verify_args();
  args.records = nullptr, args.record_rows = nullptr;
  const List table{5, 2, 3, -1, -1, -1, -1, -1, 4, 7, 8, 9};
  const kda::Tensor node_slots(const_cast<List&>(table).data(), kda::Element::int32, {3, 4});
  args.node_slots = node_slots;
  EXPECT_ACCEPTED(kda_verify(w.plan.get(), &args, &w.resources, &error));
}

TEST_F(AcceptanceTest, LayersByStrideAndByTable) {
  const int64_t one = World::HV * World::V * World::K;
  const kda::Tensor memory = w.tensor({2, World::kSlots, one});
  auto commit = w.commit_args();
  const kda::Tensor state(memory.data(), KDA_FP32, {World::kSlots, World::HV, World::V, World::K});
  const auto record_bytes = static_cast<int64_t>(w.plan.info().record_row_bytes) * World::kRecordRows;
  Bytes records(static_cast<size_t>(2 * record_bytes));
  for (int layer = 0; layer < 2; ++layer) {
    std::memcpy(records.data() + layer * record_bytes, w.record_memory.data(), static_cast<size_t>(record_bytes));
  }
  const kda::Tensor layer_records(records.data(), kda::Element::uint8,
                                  {World::kRecordRows, record_bytes / World::kRecordRows});
  commit.layers = 2;
  commit.rows.state = state, commit.records = layer_records;
  commit.state_layers.stride = World::kSlots * one * 4, commit.record_layers.stride = record_bytes;
  EXPECT_ACCEPTED(kda_commit(w.plan.get(), &commit, &w.resources, &error));
  std::vector<uint64_t> table{
      reinterpret_cast<uint64_t>(memory.data<char>()) + static_cast<uint64_t>(World::kSlots * one * 4),
      reinterpret_cast<uint64_t>(memory.data<char>())};
  const kda::Tensor addresses(table.data(), kda::Element::uint64, {2});
  const kda::Tensor nowhere(nullptr, KDA_FP32, {World::kSlots, World::HV, World::V, World::K});
  commit.rows.state = nowhere, commit.state_layers = {addresses, 0};
  EXPECT_ACCEPTED(kda_commit(w.plan.get(), &commit, &w.resources, &error));
}

TEST_F(AcceptanceTest, ARefusedCallWritesNothing) {
  auto args = w.extend_args();
  w.slots[2] = 5;
  const int64_t out_count = World::kTokens * World::HV * World::V;
  const int64_t state_count = World::kSlots * World::HV * World::V * World::K;
  const auto out = values(w.out, out_count), state = values(w.state, state_count);
  EXPECT_EQ(extend(args, nullptr), KDA_E_SLOT_DUPLICATE);
  EXPECT_EQ(values(w.out, out_count), out);
  EXPECT_EQ(values(w.state, state_count), state);
}

// The null rule over slot 0, with and without the option, for each list that the option covers or does not.
struct NullSlot0Test : testing::TestWithParam<bool> {};

TEST_P(NullSlot0Test, Matrix) {
  kda_problem problem = World::default_problem();
  problem.null_slot0 = GetParam() ? 1 : 0;
  World w(problem);
  const auto extend = [&](const kda_extend_args& args) {
    return kda_extend(w.plan.get(), &args, &w.resources, nullptr);
  };
  const kda_status covered = GetParam() ? KDA_OK : KDA_E_SLOT_DUPLICATE;
  const List zeros{0, 0, 0}, distinct{6, 8, 9};
  auto args = w.extend_args();
  args.snapshots = {};
  args.rows.slots = zeros;
  EXPECT_EQ(extend(args), covered) << "slots";
  args.rows.slots = w.slots, args.rows.dst_slots = zeros;
  EXPECT_EQ(extend(args), covered) << "dst_slots of the same pool";
  args.rows.dst_state = w.other_pool;
  EXPECT_EQ(extend(args), KDA_E_SLOT_DUPLICATE) << "dst_slots of another pool";
  args = w.extend_args();
  args.snapshots.slots = zeros;
  EXPECT_EQ(extend(args), covered) << "snapshots into the state pool";
  args.snapshots.pool = w.other_pool;
  EXPECT_EQ(extend(args), KDA_E_SLOT_DUPLICATE) << "snapshots into another pool";
  auto move = w.move_args();
  move.source_slots = distinct, move.destination_slots = zeros;
  EXPECT_EQ(kda_move(w.plan.get(), &move, &w.resources, nullptr), covered) << "move within the pool";
  move.destination = w.other_pool;
  EXPECT_EQ(kda_move(w.plan.get(), &move, &w.resources, nullptr), KDA_E_SLOT_DUPLICATE) << "move to another pool";
  auto verify = w.verify_args();
  verify.record_rows = zeros;
  EXPECT_EQ(kda_verify(w.plan.get(), &verify, &w.resources, nullptr), KDA_E_RECORD_ROW) << "record rows";
}

INSTANTIATE_TEST_SUITE_P(Option, NullSlot0Test, testing::Bool());

}  // namespace
}  // namespace kda_test
