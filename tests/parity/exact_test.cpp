// Exact numerics: verify of any tree, node_states, node_slots, commit, snapshots, pending commit, extend and the
// convolution give the bits that decode gives walking the path. 1000 random trees for each pool dtype, in batches of 33
// and alone, on one and on two threads, under different plans.
#include "parity/walk.h"

namespace parity {
namespace {

constexpr int kBatch = 33, kBatches = 31, kNodes = 12;  // 1023 trees

Spec random_spec(Random& r, Type state) {
  Spec s;
  s.form.gate = r.pick<judge::Gate>({judge::Gate::softplus, judge::Gate::bounded, judge::Gate::precomputed});
  s.form.beta = r.pick<judge::Beta>({judge::Beta::sigmoid, judge::Beta::sigmoid2, judge::Beta::none});
  s.form.l2norm = r.chance(0.8);
  s.form.H = r.in(1, 2);
  s.form.HV = s.form.H * r.in(1, 2);
  s.form.K = r.pick<int>({16, 32, 24, 7, 40});
  s.form.V = r.pick<int>({16, 32, 8, 19});
  s.io = r.pick<Type>({Type::f32, Type::bf16, Type::f16});
  s.gate_type = r.chance(0.5) ? Type::f32 : s.io;
  s.beta_type = r.chance(0.5) ? Type::f32 : s.io;
  s.state = state;
  s.kv = r.chance(0.4);
  s.conv_width = r.in(2, 4);
  s.conv_state = r.chance(0.5) ? Type::f32 : s.io;
  s.conv_weight = r.chance(0.5) ? Type::f32 : s.io;
  s.channel_major = r.chance(0.5);
  return s;
}

PlanOptions batch_options(int threads) {
  PlanOptions o;
  o.max_rows = kBatch * kNodes;  // the widest depth of a walk
  o.max_tokens = kBatch * kNodes;
  o.max_nodes = kNodes;
  o.max_snapshots = kBatch * kNodes;
  o.threads = threads;
  return o;
}

// Packed parents as a tensor.
Tensor packed(const std::vector<std::vector<int>>& parents) {
  std::vector<int64_t> all;
  for (const auto& p : parents) all.insert(all.end(), p.begin(), p.end());
  return Tensor::of(Type::i32, all);
}

kda_verify_args verify_args(const DraftBatch& batch, const TokenTensors& t, const Tensor& parents,
                            const Tensor& records) {
  kda_verify_args args{};
  args.struct_size = sizeof(args);
  args.tokens = abi_tokens(batch.spec, t);
  args.rows = batch.rows.abi();
  args.parents = parents.dl();
  args.records = records.dl();
  return args;
}

TokenTensors with_new_out(const Spec& spec, const TokenTensors& t) {
  TokenTensors copy = t;
  copy.out = Tensor(spec.io, t.out.shape());
  return copy;
}

void expect_outputs(const DraftBatch& batch, const TokenTensors& t, const Walk& walk, const char* what) {
  for (int i = 0; i < batch.count(); ++i)
    for (int n = 0; n < int(batch.parents[size_t(i)].size()); ++n)
      ASSERT_TRUE(token_bits(t.out, batch.rows.begin(i) + n) == walk.out[size_t(i)][size_t(n)])
          << what << ": output of row " << i << " node " << n;
}

// Verify of all rows with every way to look at node states, then commit with snapshots of every accepted node.
void check_batch(const Plan& plan, DraftBatch batch, const Tensor& pool, const Walk& walk,
                 const std::vector<int>& tips) {
  const Spec& spec = batch.spec;
  const Tensor live = pool.clone();
  batch.rows.state = live;
  const TokenTensors t = with_new_out(spec, batch.tokens);
  const Tensor parents = packed(batch.parents), records = plan.records(batch.count());
  const Tensor node_states = judge::make_pool(spec, spec.state, batch.count() * kNodes, 0);
  const auto& s = node_states.shape();
  const Tensor states5 =
      node_states.view({batch.count(), kNodes, s[1], s[2], s[3]},
                       {kNodes * node_states.strides()[0], node_states.strides()[0], s[2] * s[3], s[3], 1}, 0);
  std::vector<std::vector<int64_t>> slots;
  int64_t next = 0;
  for (const auto& p : batch.parents) {
    slots.emplace_back();
    for (size_t n = 0; n < p.size(); ++n) slots.back().push_back(next++);
  }
  Random r(7);
  const Tensor node_slots = index_matrix(r, slots, kNodes), node_pool = judge::make_pool(spec, spec.state, next, 0);
  kda_verify_args args = verify_args(batch, t, parents, records);
  args.node_states = states5.dl();
  args.node_slots = node_slots.dl();
  args.node_pool = node_pool.dl();
  ASSERT_TRUE(plan.verify(args));
  expect_outputs(batch, t, walk, "verify in a batch");
  ASSERT_TRUE(live.storage() == pool.storage()) << "verify wrote the pool";
  for (int i = 0; i < batch.count(); ++i)
    for (int n = 0; n < int(batch.parents[size_t(i)].size()); ++n) {
      ASSERT_TRUE(judge::slot_bits(node_states, i * kNodes + n) == walk.state[size_t(i)][size_t(n)]) << "node_states";
      ASSERT_TRUE(judge::slot_bits(node_pool, slots[size_t(i)][size_t(n)]) == walk.state[size_t(i)][size_t(n)])
          << "node_slots";
    }

  Snapshots snapshots;
  snapshots.pool = judge::make_pool(spec, spec.state, next, 0);
  std::vector<int64_t> tip_list(tips.begin(), tips.end());
  for (int i = 0; i < batch.count(); ++i)
    for (int n : judge::path_to(batch.parents[size_t(i)], tips[size_t(i)]))
      snapshots.add(i, n, slots[size_t(i)][size_t(n)]);
  snapshots.pack(r);
  const Tensor tips_t = Tensor::of(Type::i32, tip_list);
  kda_commit_args commit{};
  commit.struct_size = sizeof(commit);
  commit.rows = batch.rows.abi();
  commit.rows.cu_seqlens = nullptr;
  commit.tips = tips_t.dl();
  commit.records = records.dl();
  commit.snapshots = snapshots.abi();
  ASSERT_TRUE(plan.commit(commit));
  for (int i = 0; i < batch.count(); ++i) {
    if (tips[size_t(i)] < 0) {
      ASSERT_TRUE(judge::slot_bits(live, i) == judge::slot_bits(pool, i)) << "commit of tip -1";
      continue;
    }
    ASSERT_TRUE(judge::slot_bits(live, i) == walk.state[size_t(i)][size_t(tips[size_t(i)])]) << "commit, row " << i;
    for (int n : judge::path_to(batch.parents[size_t(i)], tips[size_t(i)]))
      ASSERT_TRUE(judge::slot_bits(snapshots.pool, slots[size_t(i)][size_t(n)]) == walk.state[size_t(i)][size_t(n)])
          << "commit's snapshot, row " << i << " node " << n;
  }
}

// One row of the batch as a call of its own, under a plan for one row.
void check_alone(const Plan& plan, const DraftBatch& batch, int row, const Tensor& pool, const Walk& walk, int tip) {
  std::vector<int64_t> tokens;
  for (int64_t n = 0; n < batch.rows.length(row); ++n) tokens.push_back(batch.rows.begin(row) + n);
  DraftBatch one;
  one.spec = batch.spec;
  one.tokens = gather(batch.spec, batch.tokens, tokens);
  one.parents = {batch.parents[size_t(row)]};
  one.rows.cu = {0, int64_t(tokens.size())};
  one.rows.slots = {row};
  Random r(3);
  one.rows.pack(r);
  const Tensor live = pool.clone();
  one.rows.state = live;
  const Tensor parents = packed(one.parents), records = plan.records(1);
  ASSERT_TRUE(plan.verify(verify_args(one, one.tokens, parents, records)));
  for (size_t n = 0; n < tokens.size(); ++n)
    ASSERT_TRUE(token_bits(one.tokens.out, int64_t(n)) == walk.out[size_t(row)][n])
        << "verify alone, row " << row << " node " << n;
  if (tip < 0) return;
  const Tensor tips_t = Tensor::of(Type::i64, {tip});
  kda_commit_args commit{};
  commit.struct_size = sizeof(commit);
  commit.rows = one.rows.abi();
  commit.rows.cu_seqlens = nullptr;
  commit.tips = tips_t.dl();
  commit.records = records.dl();
  ASSERT_TRUE(plan.commit(commit));
  ASSERT_TRUE(judge::slot_bits(live, row) == walk.state[size_t(row)][size_t(tip)]) << "commit alone, row " << row;
}

// The next round with this round's commit pending equals commit, then a walk by decode.
void check_pending(const Plan& plan, Random& r, DraftBatch batch, const Tensor& pool, const Walk& walk,
                   const std::vector<int>& tips) {
  const Tensor live = pool.clone(), committed = pool.clone();
  batch.rows.state = live;
  const Tensor parents = packed(batch.parents), records = plan.records(2 * batch.count());
  const TokenTensors t = with_new_out(batch.spec, batch.tokens);
  ASSERT_TRUE(plan.verify(verify_args(batch, t, parents, records)));
  for (int i = 0; i < batch.count(); ++i) {
    if (tips[size_t(i)] < 0) continue;
    const Bits& bits = walk.state[size_t(i)][size_t(tips[size_t(i)])];
    std::memcpy(committed.data() + i * committed.strides()[0] * judge::bytes_of(committed.type()), bits.data(),
                bits.size());
  }
  DraftBatch next = random_batch(r, batch.spec, batch.count(), kNodes);
  const Tensor next_parents = packed(next.parents);
  next.tokens.A_log = batch.tokens.A_log;
  next.tokens.dt_bias = batch.tokens.dt_bias;
  next.rows.state = live;
  std::vector<int64_t> second_rows, tip_list(tips.begin(), tips.end());
  for (int i = 0; i < batch.count(); ++i) second_rows.push_back(batch.count() + i);
  const Tensor second_rows_t = Tensor::of(Type::i64, second_rows), tips_t = Tensor::of(Type::i32, tip_list);
  std::vector<int64_t> first_rows;
  for (int i = 0; i < batch.count(); ++i) first_rows.push_back(i);
  const Tensor first_rows_t = Tensor::of(Type::i32, first_rows);
  kda_verify_args args = verify_args(next, next.tokens, next_parents, records);
  args.record_rows = second_rows_t.dl();
  args.pending_tips = tips_t.dl();
  args.pending_record_rows = first_rows_t.dl();
  ASSERT_TRUE(plan.verify(args));
  ASSERT_TRUE(live.storage() == committed.storage()) << "the pool after a pending commit";
  expect_outputs(next, next.tokens, walk_by_decode(plan, next, committed), "verify after a pending commit");
}

// Extend over the accepted path; with an fp32 pool its states are decode's as well.
void check_extend_path(const Plan& plan, const DraftBatch& batch, const Tensor& pool, const Walk& walk,
                       const std::vector<int>& tips) {
  std::vector<int64_t> tokens, lengths;
  for (int i = 0; i < batch.count(); ++i) {
    const std::vector<int> path = judge::path_to(batch.parents[size_t(i)], tips[size_t(i)]);
    for (int n : path) tokens.push_back(batch.rows.begin(i) + n);
    lengths.push_back(int64_t(path.size()));
  }
  Rows rows = batch.rows;
  rows.cu = cut(lengths, 0);
  Random r(11);
  rows.pack(r);
  const Tensor live = pool.clone();
  rows.state = live;
  const TokenTensors t = gather(batch.spec, batch.tokens, tokens);
  kda_extend_args args{};
  args.struct_size = sizeof(args);
  args.tokens = abi_tokens(batch.spec, t);
  args.rows = rows.abi();
  ASSERT_TRUE(plan.extend(args));
  for (int i = 0; i < batch.count(); ++i) {
    const std::vector<int> path = judge::path_to(batch.parents[size_t(i)], tips[size_t(i)]);
    for (size_t n = 0; n < path.size(); ++n)
      ASSERT_TRUE(token_bits(t.out, rows.begin(i) + int64_t(n)) == walk.out[size_t(i)][size_t(path[n])]) << "extend";
    if (path.empty()) continue;
    ASSERT_TRUE(judge::slot_bits(live, i) == walk.state[size_t(i)][size_t(path.back())]) << "extend's state";
  }
}

void thousand_trees(const Target& target, Type state) {
  for (int b = 0; b < scaled(kBatches); ++b) {
    Random r(uint64_t(b) * 2 + (state == Type::bf16));
    Spec spec = random_spec(r, state);
    fit_head_sizes(target, &spec);
    SCOPED_TRACE("batch " + std::to_string(b) + ": " + spec.text());
    PlanOptions one = batch_options(1);
    one.max_rows = 1;
    one.max_tokens = one.max_nodes = 17;
    const Plan single(target, spec, batch_options(1)), threaded(target, spec, batch_options(2)),
        alone(target, spec, one);
    if (!single.usable() || !threaded.usable() || !alone.usable()) return;
    const DraftBatch batch = random_batch(r, spec, kBatch, kNodes);
    const Tensor pool = filled_pool(r, spec, kBatch, 1);
    const Walk walk = walk_by_decode(single, batch, pool);
    if (testing::Test::HasFailure()) return;
    std::vector<int> tips;
    for (const auto& p : batch.parents) tips.push_back(r.in(-1, int(p.size()) - 1));
    check_batch(single, batch, pool, walk, tips);
    check_batch(threaded, batch, pool, walk, tips);
    for (int i = 0; i < kBatch && !testing::Test::HasFailure(); ++i)
      check_alone(alone, batch, i, pool, walk, tips[size_t(i)]);
    check_pending(b % 2 == 0 ? single : threaded, r, batch, pool, walk, tips);
    if (state == Type::f32) check_extend_path(b % 2 == 0 ? threaded : single, batch, pool, walk, tips);
    if (testing::Test::HasFailure()) return;
  }
}

KDA_PARITY_SUITE(Exact);
TEST_P(Exact, ThousandTreesFp32Pool) { thousand_trees(GetParam(), Type::f32); }
TEST_P(Exact, ThousandTreesBf16Pool) { thousand_trees(GetParam(), Type::bf16); }

void check_conv(const Plan& plan, Random& r, ConvBatch batch, const Tensor& pool, const std::vector<int>& tips) {
  const Walk walk = walk_conv_by_decode(plan, batch, pool);
  const Spec& spec = batch.spec;
  const int rows = batch.rows.count();
  const Tensor live = pool.clone(), parents = packed(batch.parents),
               records = plan.conv_records(2 * rows, spec.channels());
  batch.rows.state = live;
  const Tensor out(spec.io, batch.x.shape());
  kda_conv_args args = batch.args(out);
  args.parents = parents.dl();
  args.records = records.dl();
  ASSERT_TRUE(plan.conv_verify(args));
  for (int i = 0; i < rows; ++i)
    for (size_t n = 0; n < batch.parents[size_t(i)].size(); ++n)
      ASSERT_TRUE(token_bits(out, batch.rows.begin(i) + int64_t(n)) == walk.out[size_t(i)][n]) << "conv verify";
  ASSERT_TRUE(live.storage() == pool.storage()) << "conv verify wrote the pool";

  // Pending on one copy, plain commit on another.
  const Tensor committed = pool.clone();
  const Tensor tips_t = Tensor::of(Type::i32, {tips.begin(), tips.end()});
  Rows commit_rows = batch.rows;
  commit_rows.state = committed;
  kda_commit_args commit{};
  commit.struct_size = sizeof(commit);
  commit.rows = commit_rows.abi();
  commit.rows.cu_seqlens = nullptr;
  commit.tips = tips_t.dl();
  commit.records = records.dl();
  ASSERT_TRUE(plan.conv_commit(commit));
  for (int i = 0; i < rows; ++i)
    ASSERT_TRUE(judge::slot_bits(committed, i) ==
                (tips[size_t(i)] < 0 ? judge::slot_bits(pool, i) : walk.state[size_t(i)][size_t(tips[size_t(i)])]))
        << "conv commit, row " << i;

  ConvBatch next = random_conv_batch(r, spec, rows, kNodes);
  next.weight = batch.weight;
  next.bias = batch.bias;
  next.rows.state = live;
  const Tensor next_out(spec.io, next.x.shape()), next_parents = packed(next.parents);
  std::vector<int64_t> first, second;
  for (int i = 0; i < rows; ++i) {
    first.push_back(i);
    second.push_back(rows + i);
  }
  const Tensor first_t = Tensor::of(Type::i32, first), second_t = Tensor::of(Type::i32, second);
  args = next.args(next_out);
  args.parents = next_parents.dl();
  args.records = records.dl();
  args.record_rows = second_t.dl();
  args.pending_tips = tips_t.dl();
  args.pending_record_rows = first_t.dl();
  ASSERT_TRUE(plan.conv_verify(args));
  ASSERT_TRUE(live.storage() == committed.storage()) << "the windows after a pending commit";
  const Walk next_walk = walk_conv_by_decode(plan, next, committed);
  for (int i = 0; i < rows; ++i)
    for (size_t n = 0; n < next.parents[size_t(i)].size(); ++n)
      ASSERT_TRUE(token_bits(next_out, next.rows.begin(i) + int64_t(n)) == next_walk.out[size_t(i)][n])
          << "conv, next round";
}

TEST_P(Exact, ThousandConvTrees) {
  for (int b = 0; b < scaled(kBatches); ++b) {
    Random r(uint64_t(b) + 500);
    Spec spec = random_spec(r, Type::f32);
    fit_head_sizes(GetParam(), &spec);
    SCOPED_TRACE("batch " + std::to_string(b) + ": " + spec.text());
    const Plan plan(GetParam(), spec, batch_options(1 + b % 2));
    if (!plan.usable()) return;
    const ConvBatch batch = random_conv_batch(r, spec, kBatch, kNodes);
    const Tensor pool = judge::make_conv_pool(spec, spec.conv_state, spec.channels(), kBatch + 1, r.in(0, 5));
    for (int64_t i = 0; i < kBatch; ++i) judge::fill_window(r, pool, i);
    std::vector<int> tips;
    for (const auto& p : batch.parents) tips.push_back(r.in(-1, int(p.size()) - 1));
    check_conv(plan, r, batch, pool, tips);
    if (HasFailure()) return;
  }
}

// A snapshot changes no other bit, and a later token never changes an earlier output by a bit.
TEST_P(Exact, LaterTokensChangeNothingEarlier) {
  for (int n = 0; n < scaled(60); ++n) {
    Random r(uint64_t(n) + 900);
    Spec spec = random_spec(r, r.chance(0.5) ? Type::f32 : Type::bf16);
    fit_head_sizes(GetParam(), &spec);
    SCOPED_TRACE(spec.text());
    const Plan plan(GetParam(), spec);
    if (!plan.usable()) return;
    const int T = r.in(2, 40), changed = r.in(1, T - 1);
    const TokenTensors t = judge::random_tokens(r, spec, T, true);
    const Tensor pool = filled_pool(r, spec, 1, 1);
    const auto outputs = [&](int length, bool change) {
      TokenTensors u = with_new_out(spec, t);
      u.q = t.q.clone();
      u.k = t.k.clone();
      u.v = t.v.clone();
      u.a = t.a.clone();
      if (change)
        for (int64_t h = 0; h < spec.form.HV; ++h) {
          for (int64_t c = 0; c < spec.form.K; ++c) u.a.set(-std::fabs(u.a.at(changed, h, c)) - 30, changed, h, c);
          u.v.set(1e3, changed, h, 0);
        }
      Rows rows;
      rows.cu = {0, length};
      rows.slots = {0};
      rows.state = pool.clone();
      rows.pack(r);
      kda_extend_args args{};
      args.struct_size = sizeof(args);
      args.tokens = abi_tokens(spec, u);
      args.rows = rows.abi();
      plan.extend(args);
      return u;
    };
    const TokenTensors whole = outputs(T, false), other = outputs(T, true), shorter = outputs(changed, false);
    for (int i = 0; i < changed; ++i) {
      ASSERT_TRUE(token_bits(whole.out, i) == token_bits(other.out, i))
          << "token " << i << " of " << T << ", changed " << changed;
      ASSERT_TRUE(token_bits(whole.out, i) == token_bits(shorter.out, i))
          << "token " << i << " of " << T << ", cut at " << changed;
    }
  }
}

}  // namespace
}  // namespace parity
