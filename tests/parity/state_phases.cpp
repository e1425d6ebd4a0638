// Extend, decode, verify, commit, pending commit and move against the judge.
#include "parity/phases.h"

namespace parity {
namespace {

Type other_type(Random& r) { return r.chance(0.5) ? Type::f32 : Type::bf16; }

// The pools of a call: the plan's own, one for destinations, one for snapshots; before and after.
struct Pools {
  Tensor own, dst, other;
  Tensor own_before, dst_before, other_before;
  std::vector<Expected> in_own, in_dst, in_other;

  Pools(Random& r, const Spec& spec, Rows* rows, const Layout& layout, Type snapshot_type) {
    const int64_t slots = int64_t(layout.slot_order.size());
    const bool plain = spec.plain_nodes > 0;
    const auto gap = [&] { return plain ? 8 * r.in(0, 1) : r.in(0, 9); };
    own = judge::make_pool(spec, spec.state, slots, gap());
    for (int i = 0; i < rows->count(); ++i)
      if (!rows->null(i) && !rows->fresh(i)) judge::fill_slot(r, spec, own, rows->source(i));
    rows->state = own;
    if (!rows->dst.empty() && r.chance(0.5)) {
      dst = judge::make_pool(spec, plain ? spec.state : other_type(r), slots, gap());
      rows->dst_state = dst;
    }
    other = judge::make_pool(spec, snapshot_type, 32, gap());
    remember();
  }
  void remember() {
    own_before = own.clone();
    dst_before = dst.clone();
    other_before = other.clone();
  }
  void want_final(const Rows& rows, int r, const State& state) {
    const int64_t slot = rows.target_slot(r);
    if (slot >= 0) (rows.dst_state.present() ? in_dst : in_own).push_back({slot, state});
  }
  void want_snapshots(const Snapshots& s, int row, int64_t position, bool null_slot0, const State& state) {
    for (int64_t slot : s.at(row, position, null_slot0)) (s.own ? in_own : in_other).push_back({slot, state});
  }
  void expect(const Spec& spec, const std::string& what) const {
    const bool rounds = spec.rounds();
    expect_pool(spec, own_before, own, in_own, state_limit(spec, rounds), what + ", own pool");
    if (dst.present())
      expect_pool(spec, dst_before, dst, in_dst, state_limit(spec, rounds || dst.type() != Type::f32),
                  what + ", destination pool");
    expect_pool(spec, other_before, other, in_other, state_limit(spec, rounds || other.type() != Type::f32),
                what + ", snapshot or node pool");
  }
};

// Outputs of rows; those of null rows must be zero and those outside the rows untouched.
struct Outputs {
  judge::Measure measure;
  void row(const Spec& spec, const TokenTensors& t, const Rows& rows, int r,
           const std::vector<std::vector<double>>& want) {
    if (!want.empty()) add_out(spec, t, rows.begin(r), want, &measure);
  }
  void expect(const Spec& spec, const TokenTensors& t, const Rows& rows, const std::string& what) const {
    const double limit = out_limit(spec);
    EXPECT_TRUE(measure.within(limit)) << what << ": out " << measure.text() << ", limit " << limit;
    for (int r = 0; r < rows.count(); ++r)
      for (int64_t i = 0; rows.null(r) && i < rows.length(r); ++i)
        EXPECT_TRUE(out_zero(spec, t, rows.begin(r) + i)) << what << ": output of a null row is not zero";
    for (int64_t i = 0; i < t.count; ++i)
      if (i < rows.cu.front() || i >= rows.cu.back()) {
        EXPECT_TRUE(out_untouched(spec, t, i)) << what << ": output outside the rows was written";
      }
  }
};

void extend_rows(const Spec& spec, const Rows& rows, const TokenTensors& t, const Snapshots& snapshots, Pools* pools,
                 Outputs* outputs) {
  for (int i = 0; i < rows.count(); ++i) {
    if (rows.null(i)) continue;
    State state = initial_state(spec, rows, i, pools->own_before);
    std::vector<std::vector<double>> out;
    pools->want_snapshots(snapshots, i, 0, rows.null_slot0, state);
    for (int64_t n = 0; n < rows.length(i); ++n) {
      out.push_back(judge::advance(spec.form, t.values, rows.begin(i) + n, &state));
      pools->want_snapshots(snapshots, i, n + 1, rows.null_slot0, state);
    }
    outputs->row(spec, t, rows, i, out);
    const bool untouched = rows.length(i) == 0 && rows.dst.empty() && !rows.fresh(i);
    if (!untouched) pools->want_final(rows, i, state);
  }
}

// Room for a dozen chunks of fast extend: fewer than its calls here have.
int64_t least_segments(const Spec& spec, const PlanOptions& options) {
  const int64_t chunks = options.max_tokens / kFastStep + options.max_rows;
  const int64_t packet = 7 * kFastStep * spec.form.K;
  return 4 * chunks + 12 * spec.form.HV * packet + 2 * spec.form.HV * spec.form.K * spec.form.V * 4 +
         65536;  // the rest: lists in host memory
}

}  // namespace

void check_extend(const Target& target, const Spec& spec, Random& r) {
  PlanOptions options;
  options.null_slot0 = r.chance(0.3);
  // Fast extend works in chunks of kFastStep tokens and, if it gets little workspace, in segments of several chunks.
  if (spec.fast && target.backend == KDA_BACKEND_CUDA && r.chance(0.5))
    options.max_workspace_bytes = least_segments(spec, options);
  const Plan plan(target, spec, options);
  if (!plan.usable()) return;
  Layout layout;
  Rows rows = random_rows(r, random_lengths(r, r.in(1, 5), spec.fast ? 5 * kFastStep : 8), r.in(0, 2),
                          options.null_slot0, Destination::any, &layout);
  Pools pools(r, spec, &rows, layout, r.pick<Type>({Type::f32, Type::bf16, Type::f16}));
  if (r.chance(0.1)) {  // no slots: every row is fresh and nothing is read
    rows.slots.clear();
    rows.has_state.clear();
    rows.pack(r);
  }
  const TokenTensors t = judge::random_tokens(r, spec, rows.cu.back() + r.in(0, 2), r.chance(0.6));
  poison_null_rows(rows, t);
  const Snapshots snapshots = random_snapshots(
      r, rows, layout, 0, [&](int row) { return positions_of(rows, row, spec.fast ? kFastStep : 1); }, pools.own,
      pools.other);
  kda_extend_args args{};
  args.struct_size = sizeof(args);
  args.tokens = abi_tokens(spec, t);
  args.rows = rows.abi();
  args.snapshots = snapshots.abi();
  if (!plan.extend(args)) return;
  Outputs outputs;
  extend_rows(spec, rows, t, snapshots, &pools, &outputs);
  outputs.expect(spec, t, rows, "extend");
  pools.expect(spec, "extend");
}

void check_decode(const Target& target, const Spec& spec, Random& r) {
  PlanOptions options;
  options.null_slot0 = r.chance(0.3);
  const Plan plan(target, spec, options);
  if (!plan.usable()) return;
  const bool with_cu = r.chance(0.5);
  std::vector<int64_t> lengths;
  for (int i = r.in(1, 6); i > 0; --i) lengths.push_back(!with_cu || r.chance(0.7));
  Layout layout;
  Rows rows = random_rows(r, lengths, with_cu ? r.in(0, 2) : 0, options.null_slot0, Destination::any, &layout);
  rows.pass_cu = with_cu;
  Pools pools(r, spec, &rows, layout, Type::f32);
  const TokenTensors t = judge::random_tokens(r, spec, rows.cu.back() + (with_cu ? r.in(0, 2) : 0), r.chance(0.6));
  poison_null_rows(rows, t);
  kda_decode_args args{};
  args.struct_size = sizeof(args);
  args.tokens = abi_tokens(spec, t);
  args.rows = rows.abi();
  if (!plan.decode(args)) return;
  Outputs outputs;
  extend_rows(spec, rows, t, {}, &pools, &outputs);
  outputs.expect(spec, t, rows, "decode");
  pools.expect(spec, "decode");
}

void check_verify_and_commit(const Target& target, const Spec& spec, Random& r) {
  PlanOptions options;
  options.null_slot0 = r.chance(0.3);
  if (spec.plain_nodes > 0) options.max_nodes = spec.plain_nodes;
  options.single_root = r.chance(0.3);
  const Plan plan(target, spec, options);
  if (!plan.usable()) return;
  Layout layout;
  Rows rows = random_rows(r, random_lengths(r, r.in(1, 4), spec.plain_nodes > 0 ? spec.plain_nodes : 8), r.in(0, 2),
                          options.null_slot0, Destination::any, &layout);
  Pools pools(r, spec, &rows, layout, other_type(r));
  const TokenTensors t =
      judge::random_tokens(r, spec, rows.cu.back() + r.in(0, 2), spec.plain_nodes == 0 && r.chance(0.6));
  poison_null_rows(rows, t);
  const Draft draft = random_draft(r, rows, t.count, options.max_nodes, options.single_root);

  // Verify: the rows as they are, but without destinations.
  Rows read = rows;
  read.dst.clear();
  read.dst_state = Tensor();
  read.pack(r);
  const Tensor records = plan.records(rows.count() + 3, r.in(0, 2));
  std::vector<int64_t> record_rows = r.permutation(rows.count() + 3);
  record_rows.resize(size_t(rows.count()));
  if (r.chance(0.3)) std::iota(record_rows.begin(), record_rows.end(), 0);
  for (int64_t& row : record_rows)
    if (r.chance(0.1)) row = -1;
  const Tensor record_rows_t = index_list(r, record_rows);

  std::vector<std::vector<int64_t>> node_slots(static_cast<size_t>(rows.count()));
  const bool nodes_in_own = r.chance(0.5);
  int next = 8;
  for (int i = 0; i < rows.count(); ++i)
    for (int64_t n = 0; n < rows.length(i); ++n) {
      const bool skip = r.chance(0.6) || next == kSpareSlots;
      node_slots[size_t(i)].push_back(skip ? -1 : nodes_in_own ? layout.spare(next) : int64_t(next));
      next += !skip;
    }
  const Tensor node_slots_t = index_matrix(r, node_slots, options.max_nodes);
  const Tensor node_states = judge::make_pool(spec, other_type(r), (rows.count() + 3) * options.max_nodes, 0);
  const Tensor node_states_before = node_states.clone();
  const std::vector<int64_t> s = node_states.shape();
  const Tensor node_states_5d = node_states.view(
      {s[0] / options.max_nodes, options.max_nodes, s[1], s[2], s[3]},
      {options.max_nodes * node_states.strides()[0], node_states.strides()[0], s[2] * s[3], s[3], 1}, 0);
  const bool plain = spec.plain_nodes > 0;
  const bool with_states = !plain && r.chance(0.6), with_slots = !plain && r.chance(0.6);
  kda_verify_args args{};
  args.struct_size = sizeof(args);
  args.tokens = abi_tokens(spec, t);
  args.rows = read.abi();
  args.parents = draft.tensor.dl();
  args.records = records.dl();
  args.record_rows = record_rows_t.dl();
  args.node_states = with_states ? node_states_5d.dl() : nullptr;
  args.node_slots = with_slots ? node_slots_t.dl() : nullptr;
  args.node_pool = with_slots && !nodes_in_own ? pools.other.dl() : nullptr;
  if (!plan.verify(args)) return;

  Outputs outputs;
  std::vector<judge::Tree> trees(static_cast<size_t>(rows.count()));
  std::vector<Expected> in_node_states;
  for (int i = 0; i < rows.count(); ++i) {
    if (rows.null(i)) continue;
    trees[size_t(i)] = judge::walk_tree(spec.form, t.values, rows.begin(i), draft.parents[size_t(i)],
                                        initial_state(spec, rows, i, pools.own_before), spec.rounds());
    outputs.row(spec, t, rows, i, trees[size_t(i)].out);
    for (int64_t n = 0; n < rows.length(i); ++n) {
      const State& state = trees[size_t(i)].states[size_t(n)];
      if (record_rows[size_t(i)] >= 0)
        in_node_states.push_back({record_rows[size_t(i)] * options.max_nodes + n, state});
      const int64_t slot = node_slots[size_t(i)][size_t(n)];
      if (with_slots && slot >= 0 && !(nodes_in_own && options.null_slot0 && slot == 0))
        (nodes_in_own ? pools.in_own : pools.in_other).push_back({slot, state});
    }
  }
  outputs.expect(spec, t, rows, "verify");
  pools.expect(spec, "verify");
  if (with_states)
    expect_pool(spec, node_states_before, node_states, in_node_states,
                state_limit(spec, spec.rounds() || node_states.type() != Type::f32), "verify, node_states");

  // Commit some tips.
  pools.remember();
  pools.in_own.clear();
  pools.in_dst.clear();
  pools.in_other.clear();
  const std::vector<int64_t> tips = random_tips(r, rows);
  const Tensor tips_t = index_list(r, tips);
  const Snapshots snapshots = random_snapshots(
      r, rows, layout, 0,
      [&](int row) {
        const bool none = record_rows[size_t(row)] < 0;
        return none ? std::vector<int64_t>() : accepted(draft.parents[size_t(row)], tips[size_t(row)]);
      },
      pools.own, pools.other);
  kda_commit_args commit{};
  commit.struct_size = sizeof(commit);
  commit.rows = rows.abi();
  commit.rows.cu_seqlens = nullptr;
  commit.tips = tips_t.dl();
  commit.records = records.dl();
  commit.record_rows = record_rows_t.dl();
  commit.snapshots = snapshots.abi();
  if (!plan.commit(commit)) return;
  EXPECT_EQ(plan.device_status(), 0u);
  for (int i = 0; i < rows.count(); ++i) {
    if (rows.null(i)) continue;
    const int64_t tip = record_rows[size_t(i)] < 0 ? -1 : tips[size_t(i)];
    if (tip < 0) {
      if (!rows.dst.empty()) pools.want_final(rows, i, initial_state(spec, rows, i, pools.own_before));
      continue;
    }
    for (int node : judge::path_to(draft.parents[size_t(i)], int(tip)))
      pools.want_snapshots(snapshots, i, node, options.null_slot0, trees[size_t(i)].states[size_t(node)]);
    pools.want_final(rows, i, trees[size_t(i)].states[size_t(tip)]);
  }
  pools.expect(spec, "commit");
}

void check_verify_pending(const Target& target, const Spec& spec, Random& r) {
  PlanOptions options;
  options.null_slot0 = r.chance(0.3);
  const bool plain = spec.plain_nodes > 0;
  if (plain) options.max_nodes = spec.plain_nodes;
  const int longest = plain ? spec.plain_nodes : 6;
  const Plan plan(target, spec, options);
  if (!plan.usable()) return;
  Layout layout;
  Rows rows =
      random_rows(r, random_lengths(r, r.in(1, 4), longest), r.in(0, 2), options.null_slot0, Destination::any, &layout);
  Pools pools(r, spec, &rows, layout, other_type(r));
  const int n = rows.count();
  const Tensor records = plan.records(2 * n, r.in(0, 2));
  const std::vector<int64_t> order = r.permutation(2 * n);
  const std::vector<int64_t> first_rows(order.begin(), order.begin() + n), second_rows(order.begin() + n, order.end());
  const Tensor first_rows_t = index_list(r, first_rows), second_rows_t = index_list(r, second_rows);

  Rows read = rows;
  read.dst.clear();
  read.dst_state = Tensor();
  read.pack(r);
  const TokenTensors t1 = judge::random_tokens(r, spec, rows.cu.back(), !plain);
  poison_null_rows(rows, t1);
  const Draft draft1 = random_draft(r, rows, t1.count, options.max_nodes, false);
  kda_verify_args args{};
  args.struct_size = sizeof(args);
  args.tokens = abi_tokens(spec, t1);
  args.rows = read.abi();
  args.parents = draft1.tensor.dl();
  args.records = records.dl();
  args.record_rows = first_rows_t.dl();
  if (!plan.verify(args)) return;

  std::vector<int64_t> tips = random_tips(r, rows), pending_rows = first_rows;
  for (int64_t& row : pending_rows)
    if (r.chance(0.1)) row = -1;
  const Tensor tips_t = index_list(r, tips), pending_rows_t = index_list(r, pending_rows);
  Snapshots snapshots;
  if (!plain) {
    snapshots = random_snapshots(
        r, rows, layout, 0,
        [&](int row) {
          const bool none = pending_rows[size_t(row)] < 0;
          return none ? std::vector<int64_t>() : accepted(draft1.parents[size_t(row)], tips[size_t(row)]);
        },
        pools.own, pools.other);
  }
  Rows next = rows;
  next.cu = cut(random_lengths(r, n, longest), r.in(0, 2));
  next.pack(r);
  const TokenTensors t2 = judge::random_tokens(r, spec, next.cu.back() + r.in(0, 2), !plain);
  poison_null_rows(next, t2);
  const Draft draft2 = random_draft(r, next, t2.count, options.max_nodes, false);
  args.tokens = abi_tokens(spec, t2);
  args.rows = next.abi();
  args.parents = draft2.tensor.dl();
  args.record_rows = second_rows_t.dl();
  args.pending_tips = tips_t.dl();
  args.pending_record_rows = pending_rows_t.dl();
  args.pending_snapshots = snapshots.abi();
  if (!plan.verify(args)) return;
  EXPECT_EQ(plan.device_status(), 0u);

  Outputs outputs;
  std::vector<std::vector<Expected>> committed(2);
  for (int i = 0; i < n; ++i) {
    if (rows.null(i)) continue;
    State state = initial_state(spec, rows, i, pools.own_before);
    const int64_t tip = pending_rows[size_t(i)] < 0 ? -1 : tips[size_t(i)];
    if (tip >= 0) {
      const judge::Tree tree =
          judge::walk_tree(spec.form, t1.values, rows.begin(i), draft1.parents[size_t(i)], state, spec.rounds());
      for (int node : judge::path_to(draft1.parents[size_t(i)], int(tip)))
        pools.want_snapshots(snapshots, i, node, options.null_slot0, tree.states[size_t(node)]);
      state = tree.states[size_t(tip)];
      pools.want_final(rows, i, state);
      if (spec.rounds()) judge::round_bf16(&state);
    } else if (!rows.dst.empty()) {
      pools.want_final(rows, i, state);
    }
    outputs.row(
        spec, t2, next, i,
        judge::walk_tree(spec.form, t2.values, next.begin(i), draft2.parents[size_t(i)], state, spec.rounds()).out);
  }
  outputs.expect(spec, t2, next, "verify with pending commit");
  pools.expect(spec, "verify with pending commit");
}

void check_move(const Target& target, const Spec& spec, Random& r) {
  PlanOptions options;
  options.null_slot0 = r.chance(0.3);
  options.layers = 2;
  const Plan plan(target, spec, options);
  if (!plan.usable()) return;
  const int64_t slots = 9;
  const bool two_pools = r.chance(0.4);
  // Two layers of one pool: a leading dimension that the call does not see.
  const auto layered = [&](Type type) {
    const Tensor both = judge::make_pool(spec, type, 2 * slots, r.in(0, 5));
    for (int64_t i = 0; i < 2 * slots; ++i)
      if (r.chance(0.8)) judge::fill_slot(r, spec, both, i);
    return both;
  };
  const auto layer = [&](const Tensor& both, int64_t l) {
    std::vector<int64_t> shape = both.shape();
    shape[0] = slots;
    return both.view(shape, both.strides(), l * slots * both.strides()[0]);
  };
  const Tensor from = layered(spec.state);
  const Tensor to = two_pools ? layered(other_type(r)) : from;
  const Tensor from_before = from.clone(), to_before = two_pools ? to.clone() : from_before;
  const std::vector<int64_t> order = r.permutation(slots);
  std::vector<int64_t> sources, destinations;
  for (int i = 0; i < 6; ++i) {
    sources.push_back(r.chance(0.1) ? -1 : r.in(0, int(slots) - 1));
    destinations.push_back(r.chance(0.1) ? -1 : order[size_t(i)]);
  }
  const Tensor sources_t = index_list(r, sources), destinations_t = index_list(r, destinations);
  const Tensor from0 = layer(from, 0), to0 = layer(to, 0);
  kda_move_args args{};
  args.struct_size = sizeof(args);
  args.layers = 2;
  args.source = from0.dl();
  args.destination = two_pools ? to0.dl() : nullptr;
  args.source_slots = sources_t.dl();
  args.destination_slots = destinations_t.dl();
  args.source_layers.stride = slots * from.strides()[0] * judge::bytes_of(from.type());
  args.destination_layers.stride = slots * to.strides()[0] * judge::bytes_of(to.type());
  if (!plan.move(args)) return;
  std::vector<int64_t> written;
  for (size_t i = 0; i < sources.size(); ++i) {
    const bool null0 = options.null_slot0 && (sources[i] == 0 || (destinations[i] == 0 && !two_pools));
    if (sources[i] < 0 || destinations[i] < 0 || null0) continue;
    for (int64_t l = 0; l < 2; ++l) {
      const int64_t source = l * slots + sources[i], destination = l * slots + destinations[i];
      written.push_back(destination);
      if (from.type() == to.type()) {
        EXPECT_EQ(judge::slot_bits(to, destination), judge::slot_bits(from_before, source)) << "move keeps every bit";
        continue;
      }
      const State got = judge::read_state(spec, to, destination), want = judge::read_state(spec, from_before, source);
      for (size_t e = 0; e < want.size(); ++e)
        if (!std::isnan(want[e])) {
          EXPECT_EQ(got[e], rounded(to.type(), want[e])) << "move rounds";
        }
    }
  }
  EXPECT_TRUE(judge::only_slots_changed(to_before, to, written)) << "move: a slot changed that was not named";
  if (two_pools) {
    EXPECT_EQ(from.storage(), from_before.storage()) << "move changed its source pool";
  }
}

}  // namespace parity
