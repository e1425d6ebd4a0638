// Conv extend, decode, verify, commit, pending commit and move against the judge.
#include "parity/phases.h"

namespace parity {
namespace {

// A call's x, weights and output on `channels` channels, strided.
struct ConvTensors {
  Tensor x, weight, bias, out;
  int64_t tokens, channels;

  ConvTensors(Random& r, const Spec& spec, int64_t tokens_, int64_t channels_) : tokens(tokens_), channels(channels_) {
    const int W = spec.conv_width;
    x = Tensor(spec.io, {tokens, channels}, {channels + r.in(0, 4), 1});
    out = Tensor(spec.io, {tokens, channels}, {channels + r.in(0, 4), 1});
    weight = Tensor(spec.conv_weight, {channels, W}, {W + r.in(0, 1), 1});
    if (r.chance(0.7)) bias = Tensor(spec.conv_weight, {channels});
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t c = 0; c < channels; ++c) x.set(r.normal(), t, c);
    for (int64_t c = 0; c < channels; ++c) {
      for (int w = 0; w < W; ++w) weight.set(r.normal(), c, w);
      if (bias.present()) bias.set(2 * r.normal(), c);
    }
  }
  kda_conv_args abi() const {
    kda_conv_args args{};
    args.struct_size = sizeof(args);
    args.x = x.dl();
    args.weight = weight.dl();
    args.bias = bias.dl();
    args.out = out.dl();
    return args;
  }
  double value(int64_t channel, const std::vector<double>& window, double newest) const {
    std::vector<double> w, inputs = window;
    for (int64_t i = 0; i < weight.size(1); ++i) w.push_back(weight.at(channel, i));
    inputs.push_back(newest);
    return judge::conv(w, bias.present() ? bias.at(channel) : 0, inputs);
  }
};

using Windows = std::vector<std::vector<double>>;  // [channel][window], oldest first

struct ExpectedWindows {
  int64_t slot;
  Windows windows;
};

void push(Windows* windows, const Tensor& x, int64_t token) {
  for (size_t c = 0; c < windows->size(); ++c) {
    (*windows)[c].erase((*windows)[c].begin());
    (*windows)[c].push_back(x.at(token, int64_t(c)));
  }
}

Windows read_windows(const Spec& spec, const Tensor& pool, int64_t slot, int64_t channels) {
  Windows w;
  for (int64_t c = 0; c < channels; ++c) w.push_back(judge::read_window(spec, pool, slot, c));
  return w;
}

// Windows are inputs, kept as they are: what is expected is exact.
void expect_windows(const Spec& spec, const Tensor& before, const Tensor& after,
                    const std::vector<ExpectedWindows>& expected, const std::string& what) {
  std::vector<int64_t> slots;
  for (const ExpectedWindows& e : expected) {
    slots.push_back(e.slot);
    for (size_t c = 0; c < e.windows.size(); ++c) {
      std::vector<double> want = e.windows[c];
      for (double& x : want) x = rounded(after.type(), x);
      EXPECT_EQ(judge::read_window(spec, after, e.slot, int64_t(c)), want)
          << what << ": slot " << e.slot << " channel " << c;
    }
  }
  EXPECT_TRUE(judge::only_slots_changed(before, after, slots)) << what << ": a window changed that was not named";
}

struct ConvPools {
  Tensor own, dst, other;  // views on the call's channels
  Tensor own_before, dst_before, other_before;
  std::vector<ExpectedWindows> in_own, in_dst, in_other;
  int64_t channels = 0;

  // `first_channel`: the call works on a range of the pool's channels.
  ConvPools(Random& r, const Spec& spec, Rows* rows, const Layout& layout, int64_t first_channel, int64_t channels_)
      : channels(channels_) {
    const int64_t slots = int64_t(layout.slot_order.size());
    const auto range = [&](const Tensor& pool) {
      const int64_t W1 = spec.conv_width - 1;
      return spec.channel_major ? pool.view({pool.size(0), channels, W1}, pool.strides(), first_channel * W1)
                                : pool.view({pool.size(0), W1, channels}, pool.strides(), first_channel);
    };
    const Tensor whole = judge::make_conv_pool(spec, spec.conv_state, spec.channels(), slots, r.in(0, 7));
    for (int i = 0; i < rows->count(); ++i)
      if (!rows->null(i) && !rows->fresh(i)) judge::fill_window(r, whole, rows->source(i));
    own = range(whole);
    rows->state = own;
    if (!rows->dst.empty() && r.chance(0.5)) {
      dst = range(judge::make_conv_pool(spec, r.chance(0.5) ? Type::f32 : spec.io, spec.channels(), slots, r.in(0, 7)));
      rows->dst_state = dst;
    }
    other = range(judge::make_conv_pool(spec, r.chance(0.5) ? Type::f32 : spec.io, spec.channels(), 32, r.in(0, 7)));
    remember();
  }
  void remember() {
    own_before = own.clone();
    dst_before = dst.clone();
    other_before = other.clone();
    in_own.clear();
    in_dst.clear();
    in_other.clear();
  }
  Windows initial(const Spec& spec, const Rows& rows, int r) const {
    if (rows.fresh(r))
      return Windows(static_cast<size_t>(channels), std::vector<double>(static_cast<size_t>(spec.conv_width - 1), 0.0));
    return read_windows(spec, own_before, rows.source(r), channels);
  }
  void want_final(const Rows& rows, int r, const Windows& windows) {
    const int64_t slot = rows.target_slot(r);
    if (slot >= 0) (rows.dst_state.present() ? in_dst : in_own).push_back({slot, windows});
  }
  void want_snapshots(const Snapshots& s, int row, int64_t position, bool null_slot0, const Windows& windows) {
    for (int64_t slot : s.at(row, position, null_slot0)) (s.own ? in_own : in_other).push_back({slot, windows});
  }
  void expect(const Spec& spec, const std::string& what) const {
    expect_windows(spec, own_before, own, in_own, what + ", own pool");
    if (dst.present()) expect_windows(spec, dst_before, dst, in_dst, what + ", destination pool");
    expect_windows(spec, other_before, other, in_other, what + ", snapshot pool");
  }
};

// Compares a row's outputs; null rows must be zero, tokens outside the rows NaN.
struct ConvOutputs {
  judge::Measure measure;
  void token(const ConvTensors& t, int64_t token, const Windows& before) {
    std::vector<double> got, want;
    for (int64_t c = 0; c < t.channels; ++c) {
      got.push_back(t.out.at(token, c));
      want.push_back(t.value(c, before[size_t(c)], t.x.at(token, c)));
    }
    measure.add(got, want);
  }
  void expect(const Spec& spec, const ConvTensors& t, const Rows& rows, const std::string& what) const {
    const double limit = judge::exact_out_limit(judge::io_of(spec.io), false);
    EXPECT_TRUE(measure.within(limit)) << what << ": out " << measure.text() << ", limit " << limit;
    std::vector<int> kind(static_cast<size_t>(t.tokens), 0);  // outside, null, live
    for (int r = 0; r < rows.count(); ++r)
      for (int64_t i = 0; i < rows.length(r); ++i) kind[size_t(rows.begin(r) + i)] = rows.null(r) ? 1 : 2;
    for (int64_t i = 0; i < t.tokens; ++i)
      for (int64_t c = 0; c < t.channels; ++c) {
        const double out = t.out.at(i, c);
        EXPECT_TRUE(kind[size_t(i)] == 2 || (kind[size_t(i)] == 1 ? out == 0 : std::isnan(out)))
            << what << ": token " << i << (kind[size_t(i)] == 1 ? " of a null row" : " outside the rows");
      }
  }
};

void poison(const Rows& rows, const ConvTensors& t) {
  for (int r = 0; r < rows.count(); ++r)
    for (int64_t i = 0; rows.null(r) && i < rows.length(r); ++i)
      for (int64_t c = 0; c < t.channels; ++c) t.x.set(std::nan(""), rows.begin(r) + i, c);
}

struct ChannelRange {
  int64_t first, count;
};

// The packed q|k|v channels in one call, or the range of q, of k or of v.
ChannelRange random_range(Random& r, const Spec& spec) {
  const int64_t key = int64_t(spec.form.H) * spec.form.K, value = int64_t(spec.form.HV) * spec.form.V;
  switch (r.in(0, 3)) {
    case 0:
      return {0, key};
    case 1:
      return {key, key};
    case 2:
      return {2 * key, value};
    default:
      return {0, spec.channels()};
  }
}

void extend_or_decode(const Target& target, const Spec& spec, Random& r, bool decode) {
  PlanOptions options;
  options.null_slot0 = r.chance(0.3);
  const Plan plan(target, spec, options);
  if (!plan.usable()) return;
  const bool with_cu = !decode || r.chance(0.5);
  std::vector<int64_t> lengths = random_lengths(r, r.in(1, 5), decode ? 1 : 7);
  if (!with_cu) std::fill(lengths.begin(), lengths.end(), 1);
  Layout layout;
  Rows rows = random_rows(r, lengths, with_cu ? r.in(0, 2) : 0, options.null_slot0, Destination::any, &layout);
  rows.pass_cu = with_cu;
  const ChannelRange range = random_range(r, spec);
  ConvPools pools(r, spec, &rows, layout, range.first, range.count);
  const ConvTensors t(r, spec, rows.cu.back() + (with_cu ? r.in(0, 2) : 0), range.count);
  poison(rows, t);
  const Snapshots snapshots =
      decode ? Snapshots()
             : random_snapshots(
                   r, rows, layout, 0, [&](int row) { return positions_of(rows, row); }, pools.own, pools.other);
  kda_conv_args args = t.abi();
  args.rows = rows.abi();
  args.snapshots = snapshots.abi();
  if (!(decode ? plan.conv_decode(args) : plan.conv_extend(args))) return;
  ConvOutputs outputs;
  for (int i = 0; i < rows.count(); ++i) {
    if (rows.null(i)) continue;
    Windows windows = pools.initial(spec, rows, i);
    pools.want_snapshots(snapshots, i, 0, options.null_slot0, windows);
    for (int64_t n = 0; n < rows.length(i); ++n) {
      outputs.token(t, rows.begin(i) + n, windows);
      push(&windows, t.x, rows.begin(i) + n);
      pools.want_snapshots(snapshots, i, n + 1, options.null_slot0, windows);
    }
    if (rows.length(i) > 0 || !rows.dst.empty() || rows.fresh(i)) pools.want_final(rows, i, windows);
  }
  const std::string what = decode ? "conv decode" : "conv extend";
  outputs.expect(spec, t, rows, what);
  pools.expect(spec, what);
}

// Outputs of every node; returns the windows after every node.
std::vector<Windows> verify_row(const ConvTensors& t, const std::vector<int>& parents, int64_t begin,
                                const Windows& committed, ConvOutputs* outputs) {
  std::vector<Windows> after;
  for (size_t n = 0; n < parents.size(); ++n) {
    Windows windows = parents[n] < 0 ? committed : after[size_t(parents[n])];
    outputs->token(t, begin + int64_t(n), windows);
    push(&windows, t.x, begin + int64_t(n));
    after.push_back(windows);
  }
  return after;
}

}  // namespace

void check_conv_extend(const Target& target, const Spec& spec, Random& r) { extend_or_decode(target, spec, r, false); }
void check_conv_decode(const Target& target, const Spec& spec, Random& r) { extend_or_decode(target, spec, r, true); }

void check_conv_verify_and_commit(const Target& target, const Spec& spec, Random& r) {
  PlanOptions options;
  options.null_slot0 = r.chance(0.3);
  options.single_root = r.chance(0.3);
  const Plan plan(target, spec, options);
  if (!plan.usable()) return;
  Layout layout;
  Rows rows =
      random_rows(r, random_lengths(r, r.in(1, 4), 8), r.in(0, 2), options.null_slot0, Destination::any, &layout);
  const ChannelRange range = random_range(r, spec);
  ConvPools pools(r, spec, &rows, layout, range.first, range.count);
  Rows read = rows;
  read.dst.clear();
  read.dst_state = Tensor();
  read.pack(r);
  const ConvTensors t(r, spec, rows.cu.back() + r.in(0, 2), range.count);
  poison(rows, t);
  const Draft draft = random_draft(r, rows, t.tokens, options.max_nodes, options.single_root);
  const Tensor records = plan.conv_records(rows.count() + 2, range.count, r.in(0, 2));
  std::vector<int64_t> record_rows = r.permutation(rows.count() + 2);
  record_rows.resize(size_t(rows.count()));
  const Tensor record_rows_t = index_list(r, record_rows);
  kda_conv_args args = t.abi();
  args.rows = read.abi();
  args.parents = draft.tensor.dl();
  args.records = records.dl();
  args.record_rows = record_rows_t.dl();
  if (!plan.conv_verify(args)) return;
  ConvOutputs outputs;
  std::vector<std::vector<Windows>> after(static_cast<size_t>(rows.count()));
  for (int i = 0; i < rows.count(); ++i)
    if (!rows.null(i))
      after[size_t(i)] = verify_row(t, draft.parents[size_t(i)], rows.begin(i), pools.initial(spec, rows, i), &outputs);
  outputs.expect(spec, t, rows, "conv verify");
  pools.expect(spec, "conv verify");

  for (std::byte& b : t.x.storage()) b = std::byte{0xff};  // x need not outlive verify
  const std::vector<int64_t> tips = random_tips(r, rows);
  const Tensor tips_t = index_list(r, tips);
  const Snapshots snapshots = random_snapshots(
      r, rows, layout, 0, [&](int row) { return accepted(draft.parents[size_t(row)], tips[size_t(row)]); }, pools.own,
      pools.other);
  kda_commit_args commit{};
  commit.struct_size = sizeof(commit);
  commit.rows = rows.abi();
  commit.rows.cu_seqlens = nullptr;
  commit.tips = tips_t.dl();
  commit.records = records.dl();
  commit.record_rows = record_rows_t.dl();
  commit.snapshots = snapshots.abi();
  if (!plan.conv_commit(commit)) return;
  EXPECT_EQ(plan.device_status(), 0u);
  for (int i = 0; i < rows.count(); ++i) {
    if (rows.null(i)) continue;
    const int tip = int(tips[size_t(i)]);
    if (tip < 0) {
      if (!rows.dst.empty()) pools.want_final(rows, i, pools.initial(spec, rows, i));
      continue;
    }
    for (int node : judge::path_to(draft.parents[size_t(i)], tip))
      pools.want_snapshots(snapshots, i, node, options.null_slot0, after[size_t(i)][size_t(node)]);
    pools.want_final(rows, i, after[size_t(i)][size_t(tip)]);
  }
  pools.expect(spec, "conv commit");
}

void check_conv_verify_pending(const Target& target, const Spec& spec, Random& r) {
  PlanOptions options;
  options.null_slot0 = r.chance(0.3);
  const Plan plan(target, spec, options);
  if (!plan.usable()) return;
  Layout layout;
  Rows rows = random_rows(r, random_lengths(r, r.in(1, 4), 6), 0, options.null_slot0, Destination::any, &layout);
  const ChannelRange range = random_range(r, spec);
  ConvPools pools(r, spec, &rows, layout, range.first, range.count);
  const int n = rows.count();
  const Tensor records = plan.conv_records(2 * n, range.count, r.in(0, 2));
  const std::vector<int64_t> order = r.permutation(2 * n);
  const Tensor first_rows = index_list(r, {order.begin(), order.begin() + n});
  const Tensor second_rows = index_list(r, {order.begin() + n, order.end()});
  Rows read = rows;
  read.dst.clear();
  read.dst_state = Tensor();
  read.pack(r);
  const ConvTensors t1(r, spec, rows.cu.back(), range.count);
  poison(rows, t1);
  const Draft draft1 = random_draft(r, rows, t1.tokens, options.max_nodes, false);
  kda_conv_args args = t1.abi();
  args.rows = read.abi();
  args.parents = draft1.tensor.dl();
  args.records = records.dl();
  args.record_rows = first_rows.dl();
  if (!plan.conv_verify(args)) return;
  ConvOutputs ignored, outputs;
  std::vector<std::vector<Windows>> after(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i)
    if (!rows.null(i))
      after[size_t(i)] =
          verify_row(t1, draft1.parents[size_t(i)], rows.begin(i), pools.initial(spec, rows, i), &ignored);

  const std::vector<int64_t> tips = random_tips(r, rows);
  const Tensor tips_t = index_list(r, tips);
  const Snapshots snapshots = random_snapshots(
      r, rows, layout, 0, [&](int row) { return accepted(draft1.parents[size_t(row)], tips[size_t(row)]); }, pools.own,
      pools.other);
  Rows next = rows;
  next.cu = cut(random_lengths(r, n, 6), r.in(0, 2));
  next.pack(r);
  ConvTensors t2(r, spec, next.cu.back() + r.in(0, 2), range.count);
  poison(next, t2);
  const Draft draft2 = random_draft(r, next, t2.tokens, options.max_nodes, false);
  args = t2.abi();
  args.rows = next.abi();
  args.parents = draft2.tensor.dl();
  args.records = records.dl();
  args.record_rows = second_rows.dl();
  args.pending_tips = tips_t.dl();
  args.pending_record_rows = first_rows.dl();
  args.snapshots = snapshots.abi();
  if (!plan.conv_verify(args)) return;
  EXPECT_EQ(plan.device_status(), 0u);
  for (int i = 0; i < n; ++i) {
    if (rows.null(i)) continue;
    Windows windows = pools.initial(spec, rows, i);
    const int tip = int(tips[size_t(i)]);
    if (tip >= 0) {
      for (int node : judge::path_to(draft1.parents[size_t(i)], tip))
        pools.want_snapshots(snapshots, i, node, options.null_slot0, after[size_t(i)][size_t(node)]);
      windows = after[size_t(i)][size_t(tip)];
      pools.want_final(rows, i, windows);
    } else if (!rows.dst.empty()) {
      pools.want_final(rows, i, windows);
    }
    verify_row(t2, draft2.parents[size_t(i)], next.begin(i), windows, &outputs);
  }
  outputs.expect(spec, t2, next, "conv verify with pending commit");
  pools.expect(spec, "conv verify with pending commit");
}

void check_conv_move(const Target& target, const Spec& spec, Random& r) {
  PlanOptions options;
  options.null_slot0 = r.chance(0.3);
  const Plan plan(target, spec, options);
  if (!plan.usable()) return;
  const int64_t slots = 9;
  const bool two_pools = r.chance(0.4);
  const Tensor from = judge::make_conv_pool(spec, spec.conv_state, spec.channels(), slots, r.in(0, 5));
  for (int64_t i = 0; i < slots; ++i)
    if (r.chance(0.8)) judge::fill_window(r, from, i);
  const Tensor to =
      two_pools ? judge::make_conv_pool(spec, r.chance(0.5) ? Type::f32 : spec.io, spec.channels(), slots, 3) : from;
  const Tensor from_before = from.clone(), to_before = to.clone();
  const std::vector<int64_t> order = r.permutation(slots);
  std::vector<int64_t> sources, destinations, written;
  for (int i = 0; i < 6; ++i) {
    sources.push_back(r.chance(0.1) ? -1 : r.in(0, int(slots) - 1));
    destinations.push_back(r.chance(0.1) ? -1 : order[size_t(i)]);
  }
  const Tensor sources_t = index_list(r, sources), destinations_t = index_list(r, destinations);
  kda_move_args args{};
  args.struct_size = sizeof(args);
  args.source = from.dl();
  args.destination = two_pools ? to.dl() : nullptr;
  args.source_slots = sources_t.dl();
  args.destination_slots = destinations_t.dl();
  if (!plan.conv_move(args)) return;
  for (size_t i = 0; i < sources.size(); ++i) {
    const bool null0 = options.null_slot0 && (sources[i] == 0 || (destinations[i] == 0 && !two_pools));
    if (sources[i] < 0 || destinations[i] < 0 || null0) continue;
    written.push_back(destinations[i]);
    if (from.type() == to.type()) {
      EXPECT_EQ(judge::slot_bits(to, destinations[i]), judge::slot_bits(from_before, sources[i]));
      continue;
    }
    const Windows got = read_windows(spec, to, destinations[i], spec.channels());
    const Windows want = read_windows(spec, from_before, sources[i], spec.channels());
    for (size_t c = 0; c < want.size(); ++c)
      for (size_t w = 0; w < want[c].size(); ++w)
        EXPECT_TRUE(std::isnan(want[c][w]) || got[c][w] == rounded(to.type(), want[c][w]));
  }
  EXPECT_TRUE(judge::only_slots_changed(to_before, to, written)) << "conv move: a window changed that was not named";
}

}  // namespace parity
