#include "parity/walk.h"

namespace parity {
namespace {

void copy_token(const Tensor& from, int64_t source, const Tensor& to, int64_t target) {
  const int64_t bytes = judge::bytes_of(from.type());
  const bool three = from.shape().size() == 3;
  for (int64_t i = 0; i < from.size(1); ++i)
    for (int64_t j = 0; j < (three ? from.size(2) : 1); ++j) {
      const int64_t read = source * from.strides()[0] + i * from.strides()[1] + (three ? j * from.strides()[2] : 0);
      const int64_t write = target * to.strides()[0] + i * to.strides()[1] + (three ? j * to.strides()[2] : 0);
      std::memcpy(to.data() + write * bytes, from.data() + read * bytes, size_t(bytes));
    }
}

Tensor gather_one(const Tensor& from, const std::vector<int64_t>& tokens) {
  std::vector<int64_t> shape = from.shape();
  shape[0] = int64_t(tokens.size());
  const Tensor to(from.type(), shape);
  for (size_t i = 0; i < tokens.size(); ++i) copy_token(from, tokens[i], to, int64_t(i));
  return to;
}

// The nodes of each depth, as (row, node).
std::vector<std::vector<std::pair<int, int>>> by_depth(const std::vector<std::vector<int>>& parents) {
  std::vector<std::vector<std::pair<int, int>>> levels;
  for (int row = 0; row < int(parents.size()); ++row)
    for (int node = 0; node < int(parents[size_t(row)].size()); ++node) {
      const size_t depth = judge::path_to(parents[size_t(row)], node).size();
      if (levels.size() < depth) levels.resize(depth);
      levels[depth - 1].push_back({row, node});
    }
  return levels;
}

// Slots of a scratch pool: the rows' committed states first, then one slot a node.
struct Places {
  std::vector<int64_t> first;
  int64_t count;
  explicit Places(const std::vector<std::vector<int>>& parents) {
    count = int64_t(parents.size());
    for (const auto& p : parents) {
      first.push_back(count);
      count += int64_t(p.size());
    }
  }
  int64_t of(int row, int node) const { return node < 0 ? row : first[size_t(row)] + node; }
};

void copy_first_slots(const Tensor& from, const Tensor& to, int64_t slots) {
  const int64_t bytes = judge::bytes_of(from.type());
  for (int64_t slot = 0; slot < slots; ++slot) {
    std::vector<int64_t> source, target;
    judge::for_each_element(from, slot, [&](int64_t at) { source.push_back(at); });
    judge::for_each_element(to, slot, [&](int64_t at) { target.push_back(at); });
    for (size_t i = 0; i < source.size(); ++i)
      std::memcpy(to.data() + target[i] * bytes, from.data() + source[i] * bytes, size_t(bytes));
  }
}

Walk empty_walk(const std::vector<std::vector<int>>& parents) {
  Walk walk;
  for (const auto& p : parents) {
    walk.out.emplace_back(p.size());
    walk.state.emplace_back(p.size());
  }
  return walk;
}

// Calls decode_level(tokens, rows, out) for each depth and collects the bits.
template <class Level>
Walk walk_levels(const std::vector<std::vector<int>>& parents, const Rows& rows, const Tensor& scratch,
                 const Places& places, const Level& decode_level) {
  Walk walk = empty_walk(parents);
  for (const auto& level : by_depth(parents)) {
    std::vector<int64_t> tokens;
    Rows calls;
    calls.cu = cut(std::vector<int64_t>(level.size(), 1), 0);
    calls.pass_cu = false;
    calls.state = scratch;
    for (const auto& [row, node] : level) {
      tokens.push_back(rows.begin(row) + node);
      calls.slots.push_back(places.of(row, parents[size_t(row)][size_t(node)]));
      calls.dst.push_back(places.of(row, node));
    }
    Random r(level.size());
    calls.pack(r);
    const Tensor out = decode_level(tokens, calls);
    if (!out.present()) return walk;
    for (size_t i = 0; i < level.size(); ++i) {
      const auto [row, node] = level[i];
      walk.out[size_t(row)][size_t(node)] = token_bits(out, int64_t(i));
      walk.state[size_t(row)][size_t(node)] = judge::slot_bits(scratch, places.of(row, node));
    }
  }
  return walk;
}

}  // namespace

TokenTensors gather(const Spec& spec, const TokenTensors& t, const std::vector<int64_t>& tokens) {
  TokenTensors g;
  g.q = gather_one(t.q, tokens);
  g.k = gather_one(t.k, tokens);
  g.v = gather_one(t.v, tokens);
  g.a = gather_one(t.a, tokens);
  g.b = gather_one(t.b, tokens);
  g.A_log = t.A_log;
  g.dt_bias = t.dt_bias;
  g.count = int64_t(tokens.size());
  g.out = Tensor(spec.io, {g.count, spec.form.HV, spec.form.V});
  judge::read_values(&g);
  return g;
}

Bits token_bits(const Tensor& tensor, int64_t token) {
  Bits bits;
  const int64_t bytes = judge::bytes_of(tensor.type());
  judge::for_each_element(tensor, token, [&](int64_t at) {
    bits.insert(bits.end(), tensor.data() + at * bytes, tensor.data() + (at + 1) * bytes);
  });
  return bits;
}

DraftBatch random_batch(Random& r, const Spec& spec, int rows, int max_nodes) {
  DraftBatch batch;
  batch.spec = spec;
  std::vector<int64_t> lengths;
  for (int i = 0; i < rows; ++i) {
    lengths.push_back(r.in(1, max_nodes));
    batch.parents.push_back(judge::random_parents(r, int(lengths.back())));
    batch.rows.slots.push_back(i);
  }
  batch.rows.cu = cut(lengths, 0);
  batch.rows.pack(r);
  batch.tokens = judge::random_tokens(r, spec, batch.rows.cu.back(), r.chance(0.5));
  return batch;
}

Tensor filled_pool(Random& r, const Spec& spec, int64_t slots, int64_t spare) {
  const Tensor pool = judge::make_pool(spec, spec.state, slots + spare, r.in(0, 5));
  for (int64_t i = 0; i < slots; ++i) judge::fill_slot(r, spec, pool, i);
  return pool;
}

Walk walk_by_decode(const Plan& plan, const DraftBatch& batch, const Tensor& pool) {
  const Places places(batch.parents);
  const Tensor scratch = judge::make_pool(batch.spec, batch.spec.state, places.count, 0);
  copy_first_slots(pool, scratch, batch.count());
  return walk_levels(batch.parents, batch.rows, scratch, places,
                     [&](const std::vector<int64_t>& tokens, const Rows& rows) {
                       const TokenTensors t = gather(batch.spec, batch.tokens, tokens);
                       kda_decode_args args{};
                       args.struct_size = sizeof(args);
                       args.tokens = abi_tokens(batch.spec, t);
                       args.rows = rows.abi();
                       return plan.decode(args) ? t.out : Tensor();
                     });
}

kda_conv_args ConvBatch::args(const Tensor& out) const {
  kda_conv_args args{};
  args.struct_size = sizeof(args);
  args.x = x.dl();
  args.weight = weight.dl();
  args.bias = bias.dl();
  args.out = out.dl();
  args.rows = rows.abi();
  return args;
}

ConvBatch random_conv_batch(Random& r, const Spec& spec, int rows, int max_nodes) {
  ConvBatch batch;
  batch.spec = spec;
  std::vector<int64_t> lengths;
  for (int i = 0; i < rows; ++i) {
    lengths.push_back(r.in(1, max_nodes));
    batch.parents.push_back(judge::random_parents(r, int(lengths.back())));
    batch.rows.slots.push_back(i);
  }
  batch.rows.cu = cut(lengths, 0);
  batch.rows.pack(r);
  const int64_t C = spec.channels();
  batch.x = Tensor(spec.io, {batch.rows.cu.back(), C});
  batch.weight = Tensor(spec.conv_weight, {C, spec.conv_width});
  if (r.chance(0.7)) batch.bias = Tensor(spec.conv_weight, {C});
  for (int64_t t = 0; t < batch.x.size(0); ++t)
    for (int64_t c = 0; c < C; ++c) batch.x.set(r.normal(), t, c);
  for (int64_t c = 0; c < C; ++c) {
    for (int w = 0; w < spec.conv_width; ++w) batch.weight.set(r.normal(), c, w);
    if (batch.bias.present()) batch.bias.set(r.normal(), c);
  }
  return batch;
}

Walk walk_conv_by_decode(const Plan& plan, const ConvBatch& batch, const Tensor& pool) {
  const Places places(batch.parents);
  const Tensor scratch =
      judge::make_conv_pool(batch.spec, batch.spec.conv_state, batch.spec.channels(), places.count, 0);
  copy_first_slots(pool, scratch, batch.rows.count());
  return walk_levels(batch.parents, batch.rows, scratch, places,
                     [&](const std::vector<int64_t>& tokens, const Rows& rows) {
                       ConvBatch level = batch;
                       level.x = gather_one(batch.x, tokens);
                       level.rows = rows;
                       const Tensor out(batch.spec.io, level.x.shape());
                       return plan.conv_decode(level.args(out)) ? out : Tensor();
                     });
}

}  // namespace parity
