#include "api/refusals.h"
#include "api/world.h"

namespace kda_test {
namespace {

// Each takes a world and the arguments of a right call, and spoils one thing.
template <class Args>
using Spoil = std::function<void(World&, Args&)>;

template <class Args>
Refusal spoiled(std::string name, kda_status expected, Args (World::*right)(),
                kda_status (*call)(const kda_plan*, const Args*, const kda_call*, kda_error*), Spoil<Args> spoil) {
  return {std::move(name), expected, [=](kda_error* error) {
            World world;
            Args args = (world.*right)();
            spoil(world, args);
            return call(world.plan.get(), &args, &world.resources, error);
          }};
}

Refusal extend(const char* name, kda_status expected, Spoil<kda_extend_args> spoil) {
  return spoiled<kda_extend_args>(std::string("extend_") + name, expected, &World::extend_args, &kda_extend, spoil);
}
Refusal decode(const char* name, kda_status expected, Spoil<kda_decode_args> spoil) {
  return spoiled<kda_decode_args>(std::string("decode_") + name, expected, &World::decode_args, &kda_decode, spoil);
}
Refusal verify(const char* name, kda_status expected, Spoil<kda_verify_args> spoil) {
  return spoiled<kda_verify_args>(std::string("verify_") + name, expected, &World::verify_args, &kda_verify, spoil);
}
Refusal pending(const char* name, kda_status expected, Spoil<kda_verify_args> spoil) {
  return spoiled<kda_verify_args>(std::string("pending_") + name, expected, &World::pending_args, &kda_verify, spoil);
}
Refusal commit(const char* name, kda_status expected, Spoil<kda_commit_args> spoil) {
  return spoiled<kda_commit_args>(std::string("commit_") + name, expected, &World::commit_args, &kda_commit, spoil);
}
Refusal move(const char* name, kda_status expected, Spoil<kda_move_args> spoil) {
  return spoiled<kda_move_args>(std::string("move_") + name, expected, &World::move_args, &kda_move, spoil);
}
Refusal conv(const char* name, kda_status expected, Spoil<kda_conv_args> spoil) {
  return spoiled<kda_conv_args>(std::string("conv_extend_") + name, expected, &World::conv_args, &kda_conv_extend,
                                spoil);
}
Refusal conv_commit(const char* name, kda_status expected, Spoil<kda_commit_args> spoil) {
  return spoiled<kda_commit_args>(std::string("conv_commit_") + name, expected, &World::conv_commit_args,
                                  &kda_conv_commit, spoil);
}

// Keeps a tensor of one test alive.
const DLTensor* keep(World& world, const kda::Tensor& tensor) {
  world.sliced.push_back(std::make_unique<kda::Tensor>(tensor));
  return *world.sliced.back();
}
const DLTensor* list(World& world, std::vector<int32_t> values) {
  static std::vector<std::unique_ptr<List>> kept;
  (void)world;
  kept.push_back(std::make_unique<List>(std::move(values)));
  return *kept.back();
}

std::vector<Refusal> argument_refusals() {
  using E = kda_extend_args;
  const int64_t H = World::H, HV = World::HV, K = World::K, V = World::V, T = World::kTokens, S = World::kSlots;
  return {
      extend("null_q", KDA_E_NULL, [](World&, E& e) { e.tokens.q = nullptr; }),
      extend("null_A_log", KDA_E_NULL, [](World&, E& e) { e.tokens.A_log = nullptr; }),
      extend("null_cu_seqlens", KDA_E_NULL, [](World&, E& e) { e.rows.cu_seqlens = nullptr; }),
      extend("null_state", KDA_E_NULL, [](World&, E& e) { e.rows.state = nullptr; }),
      extend("null_data", KDA_E_NULL,
             [=](World& w, E& e) {
               e.tokens.q = keep(w, kda::Tensor(nullptr, KDA_FP32, {T, H, K}));
             }),
      extend("struct_size_0", KDA_E_STRUCT_SIZE, [](World&, E& e) { e.struct_size = 0; }),
      extend("struct_size_absurd", KDA_E_STRUCT_SIZE, [](World&, E& e) { e.struct_size = 0xCCCCCCCC; }),
      extend("heads", KDA_E_SHAPE, [](World& w, E& e) { e.tokens.q = w.v; }),
      extend("tokens_differ", KDA_E_SHAPE, [](World& w, E& e) { e.tokens.k = keep(w, w.k.slice(0, 0, 5)); }),
      extend("rank", KDA_E_SHAPE,
             [=](World& w, E& e) {
               e.tokens.q = keep(w, kda::Tensor(w.q.data(), KDA_FP32, {T, H * K}));
             }),
      extend("negative_size", KDA_E_SHAPE,
             [=](World& w, E& e) {
               e.tokens.q = keep(w, kda::Tensor(w.q.data(), KDA_FP32, {-T, H, K}));
             }),
      extend("A_log_count", KDA_E_SHAPE, [](World& w, E& e) { e.tokens.A_log = w.dt_bias; }),
      extend("dt_bias_count", KDA_E_SHAPE, [](World& w, E& e) { e.tokens.dt_bias = w.A_log; }),
      extend("state_layout", KDA_E_SHAPE,
             [=](World& w, E& e) {
               e.rows.state = keep(w, kda::Tensor(w.state.data(), KDA_FP32, {S, HV, K, V}));
             }),
      extend("slots_count", KDA_E_SHAPE,
             [](World& w, E& e) {
               e.rows.slots = list(w, {1, 2});
             }),
      extend("io_dtype", KDA_E_DTYPE,
             [=](World& w, E& e) {
               e.tokens.q = keep(w, kda::Tensor(w.q.data(), KDA_BF16, {T, H, K}));
             }),
      extend("state_dtype", KDA_E_DTYPE,
             [=](World& w, E& e) {
               e.rows.state = keep(w, kda::Tensor(w.state.data(), KDA_BF16, {S, HV, V, K}));
             }),
      extend("slots_dtype", KDA_E_DTYPE,
             [](World& w, E& e) { e.rows.slots = keep(w, kda::Tensor(w.q.data(), KDA_FP32, {3})); }),
      extend("last_dim", KDA_E_STRIDE,
             [=](World& w, E& e) {
               e.tokens.q = keep(w, kda::Tensor(w.q.data(), KDA_FP32, {3, H, K}, {4 * K, 2 * K, 2}));
               e.tokens.k = keep(w, w.k.slice(0, 0, 3));
               e.tokens.v = keep(w, w.v.slice(0, 0, 3));
             }),
      extend("out_broadcast", KDA_E_STRIDE,
             [=](World& w, E& e) {
               e.tokens.out = keep(w, kda::Tensor(w.out.data(), KDA_FP32, {T, HV, V}, {0, V, 1}));
             }),
      extend("slot_not_compact", KDA_E_STRIDE,
             [=](World& w, E& e) {
               e.rows.state =
                   keep(w, kda::Tensor(w.state.data(), KDA_FP32, {5, HV, V, K}, {2 * HV * V * K, 2 * V * K, K, 1}));
             }),
      extend("slots_overlap", KDA_E_STRIDE,
             [=](World& w, E& e) {
               e.rows.state = keep(w, kda::Tensor(w.state.data(), KDA_FP32, {S, HV, V, K}, {V * K, V * K, K, 1}));
             }),
      extend("address", KDA_E_ALIGNMENT,
             [=](World& w, E& e) {
               e.tokens.q = keep(w, kda::Tensor(w.q.data<char>() + 2, KDA_FP32, {T, H, K}));
             }),
      extend("out_is_v", KDA_E_OVERLAP, [](World& w, E& e) { e.tokens.out = w.v; }),
      extend("out_in_state", KDA_E_OVERLAP,
             [=](World& w, E& e) {
               e.tokens.out = keep(w, kda::Tensor(w.state.data<float>() + 40, KDA_FP32, {T, HV, V}));
             }),
      extend("device", KDA_E_DEVICE,
             [=](World& w, E& e) {
               e.tokens.q = keep(w, kda::Tensor(w.q.data(), KDA_FP32, {T, H, K}, DLDevice{kDLCUDA, 0}));
             }),
      extend("rows", KDA_E_PLAN_LIMIT,
             [](World& w, E& e) {
               e.rows.cu_seqlens = list(w, {0, 1, 2, 3, 4, 5});
             }),
      extend("snapshots", KDA_E_PLAN_LIMIT,
             [](World& w, E& e) {
               const DLTensor* l = list(w, {0, 0, 0, 0, 0, 0, 0});
               e.snapshots = {l, l, l, nullptr};
             }),
      extend("workspace", KDA_E_WORKSPACE, [](World& w, E&) { w.resources.workspace_bytes = 1; }),
      extend("workspace_alignment", KDA_E_WORKSPACE,
             [](World& w, E&) { w.resources.workspace = static_cast<char*>(w.resources.workspace) + 4; }),
      extend("dst_state_alone", KDA_E_COMBINATION, [](World& w, E& e) { e.rows.dst_state = w.other_pool; }),
      extend("half_a_list", KDA_E_COMBINATION, [](World&, E& e) { e.snapshots.slots = nullptr; }),
      extend("scale", KDA_E_NUMBER, [](World&, E& e) { e.tokens.scale = std::numeric_limits<double>::infinity(); }),
      decode("fused", KDA_E_RESERVED, [](World& w, kda_decode_args& d) { d.fused.norm_weight = w.bias; }),
      verify("fused", KDA_E_RESERVED, [](World& w, kda_verify_args& v) { v.fused.conv_state = w.conv_state; }),
      verify("dst_without_pending", KDA_E_COMBINATION,
             [](World& w, kda_verify_args& v) { v.rows.dst_slots = w.snapshot_slots; }),
      verify("pending_without_records", KDA_E_COMBINATION,
             [](World& w, kda_verify_args& v) {
               v.pending_tips = w.tips;
               v.pending_record_rows = w.pending_record_rows;
               v.records = nullptr;
             }),
      verify("record_row_bytes", KDA_E_SHAPE,
             [](World& w, kda_verify_args& v) {
               v.records = w.conv_records;
               (void)w;
             }),
      verify("records_in_out", KDA_E_OVERLAP,
             [](World& w, kda_verify_args& v) {
               v.tokens.out =
                   keep(w, kda::Tensor(w.record_memory.data(), KDA_FP32, {World::kTokens, World::HV, World::V}));
             }),
      verify("node_states_depth", KDA_E_SHAPE,
             [=](World& w, kda_verify_args& v) { v.node_states = keep(w, w.node_states.slice(1, 0, 2)); }),
      commit("layers", KDA_E_PLAN_LIMIT, [](World&, kda_commit_args& c) { c.layers = 3; }),
      commit("layer_stride", KDA_E_COMBINATION, [](World&, kda_commit_args& c) { c.layers = 2; }),
      commit("null_records", KDA_E_NULL, [](World&, kda_commit_args& c) { c.records = nullptr; }),
      conv("width", KDA_E_SHAPE, [](World& w, kda_conv_args& c) { c.weight = w.x; }),
      conv("channels", KDA_E_SHAPE, [](World& w, kda_conv_args& c) { c.x = keep(w, w.x.slice(1, 0, 8)); }),
      conv("records", KDA_E_COMBINATION, [](World& w, kda_conv_args& c) { c.records = w.conv_records; }),
      {"decode_not_planned", KDA_E_NOT_PLANNED,
       [](kda_error* error) {
         kda_problem problem = World::default_problem();
         problem.operations = KDA_OPERATION_BIT(KDA_EXTEND);
         World world(problem);
         auto args = world.decode_args();
         return kda_decode(world.plan.get(), &args, &world.resources, error);
       }},
      {"declared_alignment", KDA_E_ALIGNMENT,
       [](kda_error* error) {
         kda_problem problem = World::default_problem();
         problem.alignment = 256;
         World world(problem);
         auto args = world.decode_args();
         return kda_decode(world.plan.get(), &args, &world.resources, error);
       }},
      {"lower_bound", KDA_E_NUMBER,
       [](kda_error* error) {
         kda_problem problem = World::default_problem();
         problem.gate = KDA_GATE_BOUNDED;
         World world(problem);
         auto args = world.decode_args();
         args.tokens.lower_bound = 1;
         return kda_decode(world.plan.get(), &args, &world.resources, error);
       }},
  };
}

std::vector<Refusal> value_refusals() {
  using E = kda_extend_args;
  using V = kda_verify_args;
  using C = kda_commit_args;
  return {
      extend("slot_beyond_pool", KDA_E_SLOT_RANGE, [](World& w, E&) { w.slots[1] = World::kSlots; }),
      extend("dst_beyond_pool", KDA_E_SLOT_RANGE,
             [](World& w, E& e) {
               e.rows.dst_slots = list(w, {0, 2, World::kSlots});
             }),
      extend("snapshot_beyond_pool", KDA_E_SLOT_RANGE, [](World& w, E&) { w.snapshot_slots[0] = World::kSlots; }),
      extend("slot_twice", KDA_E_SLOT_DUPLICATE, [](World& w, E&) { w.slots[2] = 5; }),
      extend("dst_twice", KDA_E_SLOT_DUPLICATE,
             [](World& w, E& e) {
               e.rows.dst_slots = list(w, {2, 2, 3});
               e.snapshots = {};
             }),
      extend("snapshot_twice", KDA_E_SLOT_DUPLICATE, [](World& w, E&) { w.snapshot_slots[2] = w.snapshot_slots[1]; }),
      extend("snapshot_in_written_slot", KDA_E_SLOT_DUPLICATE, [](World& w, E&) { w.snapshot_slots[0] = 7; }),
      extend("dst_is_read_by_another", KDA_E_SLOT_ALIASED,
             [](World& w, E& e) {
               e.rows.dst_slots = list(w, {7, 8, 9});
             }),
      extend("dst_in_shifted_view_of_state", KDA_E_SLOT_ALIASED,
             [](World& w, E& e) {
               e.rows.dst_state = keep(w, w.state.slice(0, 1, World::kSlots));
               e.rows.dst_slots = list(w, {6, 7, 8});
             }),
      extend("cu_decreases", KDA_E_CU_SEQLENS, [](World& w, E&) { w.cu[2] = 2; }),
      extend("cu_beyond_tokens", KDA_E_CU_SEQLENS, [](World& w, E&) { w.cu[3] = World::kTokens + 1; }),
      extend("cu_negative", KDA_E_CU_SEQLENS, [](World& w, E&) { w.cu[0] = -1; }),
      extend("snapshot_row", KDA_E_SNAPSHOT, [](World& w, E&) { w.snapshot_rows[1] = 3; }),
      extend("snapshot_position", KDA_E_SNAPSHOT, [](World& w, E&) { w.snapshot_positions[0] = 4; }),
      decode("two_tokens", KDA_E_CU_SEQLENS,
             [](World& w, kda_decode_args& d) {
               d.rows.cu_seqlens = list(w, {0, 2, 2, 3});
             }),
      verify("too_many_nodes", KDA_E_CU_SEQLENS, [](World& w, V&) { w.cu[3] = 8; }),
      verify("parent_is_itself", KDA_E_PARENT,
             [](World& w, V& v) {
               v.parents = list(w, {-1, 1, 0, -1, 0, 1, 2, -1, -1, -1, -1, -1});
             }),
      verify("parent_below_root", KDA_E_PARENT,
             [](World& w, V& v) {
               v.parents = list(w, {-1, 0, 0, -2, 0, 1, 2, -1, -1, -1, -1, -1});
             }),
      verify("node_slot_beyond_pool", KDA_E_SLOT_RANGE,
             [](World& w, V& v) {
               static List l{2, 3, 4, 0, 0, 0, 0, 0, 6, 8, 9, 10};
               v.node_slots = keep(w, kda::Tensor(l.data(), kda::Element::int32, {3, 4}));
             }),
      verify("node_slot_is_anothers_source", KDA_E_SLOT_ALIASED,
             [](World& w, V& v) {
               static List l{2, 3, 7, 0, 0, 0, 0, 0, 6, 8, 9, 0};
               v.node_slots = keep(w, kda::Tensor(l.data(), kda::Element::int32, {3, 4}));
             }),
      verify("record_row_beyond", KDA_E_RECORD_ROW, [](World& w, V&) { w.record_rows[2] = World::kRecordRows; }),
      verify("record_row_twice", KDA_E_RECORD_ROW, [](World& w, V&) { w.record_rows[2] = 0; }),
      pending("row_is_written", KDA_E_RECORD_ROW, [](World& w, V&) { w.record_rows[1] = 6; }),
      pending("tip_beyond_record", KDA_E_TIP, [](World& w, V&) { w.tips[0] = 3; }),
      pending("row_beyond", KDA_E_RECORD_ROW, [](World& w, V&) { w.pending_record_rows[0] = World::kRecordRows; }),
      commit("tip_beyond_record", KDA_E_TIP, [](World& w, C&) { w.tips[2] = 4; }),
      commit("record_row_beyond", KDA_E_RECORD_ROW, [](World& w, C&) { w.record_rows[0] = World::kRecordRows; }),
      commit("snapshot_beyond_tip", KDA_E_SNAPSHOT,
             [](World& w, C& c) {
               c.snapshots = {list(w, {2}), list(w, {4}), list(w, {9}), nullptr};
             }),
      commit("snapshot_of_row_without_tip", KDA_E_SNAPSHOT,
             [](World& w, C& c) {
               c.snapshots = {list(w, {1}), list(w, {0}), list(w, {9}), nullptr};
             }),
      commit("slot_twice", KDA_E_SLOT_DUPLICATE, [](World& w, C&) { w.slots[2] = 5; }),
      move("destination_twice", KDA_E_SLOT_DUPLICATE, [](World& w, kda_move_args&) { w.snapshot_slots[1] = 4; }),
      move("source_beyond_pool", KDA_E_SLOT_RANGE, [](World& w, kda_move_args&) { w.slots[0] = 11; }),
      move("between_overlapping_pools", KDA_E_SLOT_ALIASED,
           [](World& w, kda_move_args& m) { m.destination = keep(w, w.state.slice(0, 1, World::kSlots)); }),
      conv("slot_twice", KDA_E_SLOT_DUPLICATE, [](World& w, kda_conv_args&) { w.slots[2] = 5; }),
      conv_commit("tip_beyond_record", KDA_E_TIP, [](World& w, C&) { w.tips[0] = 3; }),
      {"slots_twice_in_a_large_batch", KDA_E_SLOT_DUPLICATE,
       [](kda_error* error) {
         constexpr int64_t rows = 1500;  // three blocks of the check; the two uses are in different ones
         kda_problem problem = World::default_problem();
         problem.max_rows = rows;
         World world(problem);
         std::vector<int32_t> cu(rows + 1, 0), slots(rows);
         for (int64_t row = 0; row < rows; ++row) slots[static_cast<size_t>(row)] = static_cast<int32_t>(row);
         slots[1400] = 3;
         std::vector<uint8_t> fresh(rows, 0);
         auto args = world.extend_args();
         const int64_t one = World::HV * World::V * World::K;
         std::vector<float> pool(static_cast<size_t>(rows * one));
         const kda::Tensor state(pool.data(), KDA_FP32, {rows, World::HV, World::V, World::K});
         const kda::Tensor flags(fresh.data(), kda::Element::uint8, {rows});
         args.rows = {};
         args.rows.state = state, args.rows.cu_seqlens = list(world, cu), args.rows.slots = list(world, slots);
         args.rows.has_state = flags;
         args.snapshots = {};
         return kda_extend(world.plan.get(), &args, &world.resources, error);
       }},
      {"fast_snapshot_position", KDA_E_SNAPSHOT,
       [](kda_error* error) {
         kda_problem problem = World::default_problem();
         problem.extend_numerics = KDA_FAST;
         World world(problem);
         auto args = world.extend_args();
         return kda_extend(world.plan.get(), &args, &world.resources, error);
       }},
      {"more_tokens_than_planned", KDA_E_PLAN_LIMIT,
       [](kda_error* error) {
         kda_problem problem = World::default_problem();
         problem.max_tokens = 6;
         World world(problem);
         auto args = world.extend_args();
         return kda_extend(world.plan.get(), &args, &world.resources, error);
       }},
  };
}

}  // namespace

std::vector<Refusal> call_refusals() {
  std::vector<Refusal> all = argument_refusals();
  for (Refusal& refusal : value_refusals()) all.push_back(std::move(refusal));
  return all;
}

}  // namespace kda_test
