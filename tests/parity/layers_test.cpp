// Calls over several layers give what one call a layer gives, by stride and by a table of addresses.
#include "parity/simple.h"

namespace parity {
namespace {

constexpr int kLayers = 3, kSlots = 4, kRows = 3;

// Layer l of a tensor that holds the layers one after another along its first dimension.
Tensor layer(const Tensor& all, int l) {
  std::vector<int64_t> shape = all.shape();
  shape[0] /= kLayers;
  return all.view(shape, all.strides(), l * shape[0] * all.strides()[0]);
}
int64_t layer_bytes(const Tensor& all) {
  return all.size(0) / kLayers * all.strides()[0] * judge::bytes_of(all.type());
}

// Where the layers of a tensor are, in either form. A table may name the layers in any order.
struct Addresses {
  Tensor table;
  kda_layer_addresses abi;
  Addresses(const Tensor& all, bool by_table) {
    abi = {};
    abi.stride = layer_bytes(all);
    if (!by_table) return;
    table = Tensor(Type::i64, {kLayers});
    for (int l = 0; l < kLayers; ++l) table.set_integer(l, int64_t(reinterpret_cast<uintptr_t>(layer(all, l).data())));
    abi.table = table.dl();
    abi.stride = 0;
  }
};

struct Lists {
  Tensor tips;
  Snapshots snapshots;
  explicit Lists(const Tensor& pool) {
    Random r(4);
    tips = Tensor::of(Type::i32, {1, -1, 3});
    snapshots.pool = pool;
    snapshots.add(0, 1, 1);
    snapshots.add(2, 2, 0);
    snapshots.pack(r);
  }
};

void check_commit(const Plan& plan, bool conv, const Tensor& state, const Tensor& records, const Tensor& dst,
                  const Tensor& snapshot_pool, bool by_table) {
  const auto run = [&](const kda_commit_args& args) { return conv ? plan.conv_commit(args) : plan.commit(args); };
  // One call a layer, on copies.
  const Tensor state1 = state.clone(), dst1 = dst.clone(), pool1 = snapshot_pool.clone();
  for (int l = 0; l < kLayers; ++l) {
    const Lists lists(layer(pool1, l));
    Rows rows = rows_of({1, 1, 1}, {2, 0, 3}, layer(state1, l));
    rows.dst = {0, 1, 2};
    rows.dst_state = layer(dst1, l);
    Random r(1);
    rows.pack(r);
    const Tensor layer_records = layer(records, l);
    ASSERT_TRUE(run(commit_args(rows, lists.tips, layer_records, lists.snapshots)));
  }
  const Tensor state3 = state.clone(), dst3 = dst.clone(), pool3 = snapshot_pool.clone();
  const Lists lists(layer(pool3, 0));
  Rows rows = rows_of({1, 1, 1}, {2, 0, 3}, layer(state3, 0));
  rows.dst = {0, 1, 2};
  rows.dst_state = layer(dst3, 0);
  Random r(1);
  rows.pack(r);
  const Tensor records0 = layer(records, 0);
  const Addresses of_state(state3, by_table), of_dst(dst3, by_table), of_records(records, by_table),
      of_pool(pool3, by_table);
  kda_commit_args args = commit_args(rows, lists.tips, records0, lists.snapshots);
  args.layers = kLayers;
  args.state_layers = of_state.abi;
  args.dst_layers = of_dst.abi;
  args.record_layers = of_records.abi;
  args.snapshot_layers = of_pool.abi;
  ASSERT_TRUE(run(args));
  EXPECT_TRUE(dst3.storage() == dst1.storage());
  EXPECT_TRUE(pool3.storage() == pool1.storage());
  EXPECT_TRUE(state3.storage() == state.storage()) << "with destinations the source is never written";
  EXPECT_FALSE(judge::slot_bits(layer(dst3, 0), 0) == judge::slot_bits(layer(dst3, 1), 0)) << "the layers must differ";
}

KDA_PARITY_SUITE(Layers);

TEST_P(Layers, CommitByStrideAndByTable) {
  Random r(12);
  Spec spec;
  spec.form.H = 1;
  spec.form.HV = 2;
  spec.form.K = 16;
  spec.form.V = 8;
  fit_head_sizes(GetParam(), &spec);
  PlanOptions options;
  options.layers = kLayers;
  const Plan plan(GetParam(), spec, options);
  ASSERT_TRUE(plan.usable());
  const Tensor state = filled_pool(r, spec, kLayers * kSlots, 0), records = plan.records(kLayers * kRows);
  for (int l = 0; l < kLayers; ++l) {
    const TokenTensors t = judge::random_tokens(r, spec, 12, false);
    ASSERT_TRUE(verify(plan, spec, t, rows_of({4, 4, 4}, {2, 0, 3}, layer(state, l)),
                       packed_parents({-1, 0, 0, 1, -1, 0, 1, 2, -1, -1, 1, 2}), layer(records, l)));
  }
  for (bool by_table : {false, true})
    check_commit(plan, false, state, records, judge::make_pool(spec, Type::f32, kLayers * 3, 2),
                 judge::make_pool(spec, Type::bf16, kLayers * 2, 1), by_table);
}

TEST_P(Layers, ConvCommitByStrideAndByTable) {
  Random r(13);
  Spec spec;
  spec.form.K = 5;
  spec.form.V = 7;
  fit_head_sizes(GetParam(), &spec);
  PlanOptions options;
  options.layers = kLayers;
  const Plan plan(GetParam(), spec, options);
  ASSERT_TRUE(plan.usable());
  const int64_t C = spec.channels();
  const Tensor state = judge::make_conv_pool(spec, spec.conv_state, C, kLayers * kSlots, 1);
  for (int64_t i = 0; i < kLayers * kSlots; ++i) judge::fill_window(r, state, i);
  const Tensor records = plan.conv_records(kLayers * kRows, C);
  for (int l = 0; l < kLayers; ++l) {
    ConvBatch batch = random_conv_batch(r, spec, kRows, 4);
    batch.x = Tensor(spec.io, {12, C});
    for (int64_t i = 0; i < 12 * C; ++i) batch.x.store(i, r.normal());
    batch.rows = rows_of({4, 4, 4}, {2, 0, 3}, layer(state, l));
    const Tensor out(spec.io, {12, C}), parents = packed_parents({-1, 0, 0, 1, -1, 0, 1, 2, -1, -1, 1, 2});
    const Tensor layer_records = layer(records, l);
    kda_conv_args args = batch.args(out);
    args.parents = parents.dl();
    args.records = layer_records.dl();
    ASSERT_TRUE(plan.conv_verify(args));
  }
  for (bool by_table : {false, true})
    check_commit(plan, true, state, records, judge::make_conv_pool(spec, Type::f32, C, kLayers * 3, 2),
                 judge::make_conv_pool(spec, Type::f32, C, kLayers * 2, 1), by_table);
}

}  // namespace
}  // namespace parity
