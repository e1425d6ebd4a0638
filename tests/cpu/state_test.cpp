// The state kernels of every SIMD target this machine has: against the reference kernels, and bit for bit against each
// other (extend, verify, commit and verify with a pending commit give what decode gives).
#include <gtest/gtest.h>

#include "cpu/fixture.h"

namespace kda::test {
namespace {

Problem random_problem(Random& random) {
  const DType types[] = {DType::fp32, DType::bf16, DType::fp16};
  const int dims[] = {1, 3, 16, 40, 64, 100, 128, 256};
  Problem p;
  p.heads = static_cast<int>(random.in(1, 2));
  p.value_heads = p.heads * static_cast<int>(random.in(1, 2));
  p.key_dim = dims[random.in(0, 7)];
  p.value_dim = random.chance(0.5) ? p.key_dim : dims[random.in(0, 7)];
  p.io = types[random.in(0, 2)];
  p.gate_input = random.chance(0.5) ? p.io : DType::fp32;
  p.beta_input = random.chance(0.5) ? p.io : DType::fp32;
  p.state = random.chance(0.4) ? DType::bf16 : DType::fp32;
  p.state_layout = random.chance(0.3) ? StateLayout::kv : StateLayout::vk;
  p.gate = static_cast<Gate>(random.in(0, 2));
  p.beta = static_cast<Beta>(random.in(0, 2));
  p.qk_l2norm = random.chance(0.8);
  p.max_nodes = 24;
  return p;
}

std::string describe(uint64_t seed, const Problem& p) {
  return "seed " + std::to_string(seed) + " K " + std::to_string(p.key_dim) + " V " + std::to_string(p.value_dim) +
         " io " + name_of(p.io) + " gate " + std::to_string(int(p.gate)) + " in " + name_of(p.gate_input) + " beta " +
         std::to_string(int(p.beta)) + " in " + name_of(p.beta_input) + " state " + name_of(p.state) + " l2norm " +
         std::to_string(p.qk_l2norm) + (p.state_layout == StateLayout::kv ? " kv" : " vk");
}

double out_limit(const Problem& p) {
  if (p.io == DType::fp16) return 6e-4;
  return p.io == DType::bf16 ? 2.5e-3 : p.state == DType::bf16 ? 1e-3 : 1e-5;
}
double state_limit(const Problem& p) { return p.state == DType::bf16 ? 1e-3 : 1e-5; }

int64_t most(const Problem& p) { return std::max(cpu_workspace(p), reference_verify_workspace(p)); }

class CpuState : public testing::TestWithParam<int> {};

TEST_P(CpuState, ExtendMatchesReference) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    Case c(seed, random_problem(random), {random.in(0, 40), 1, 0, random.in(1, 20), 17});
    SCOPED_TRACE(describe(seed, c.p));
    std::vector<int64_t> rows = {0, 3, 4, 4, 1}, positions = {0, 1, 16, 17, 1}, to = {0, 2, -1, 1, 3};
    Buffer snapshots[2], outs[2], pools[2];
    for (int i = 0; i < 2; ++i) {
      outs[i] = c.out;
      pools[i] = c.pool;
      snapshots[i] = Buffer(DType::fp32, 4 * c.p.slot_elements());
      ExtendLaunch launch{c.inputs(outs[i]), c.row_views(), c.pool_view(pools[i]), c.pool_view(pools[i]), {}};
      launch.snapshots = {indices(rows),
                          indices(positions),
                          indices(to),
                          {.base = snapshots[i].data(), .slots = 4, .slot_stride = c.p.slot_elements()}};
      CallMemory run(c.p, most, GetParam(), 2);
      ASSERT_EQ((i == 0 ? cpu_extend_exact : reference_extend)(c.p, launch, run.execution), KDA_OK);
    }
    EXPECT_LE(relative_error(outs[0], outs[1]), out_limit(c.p));
    EXPECT_LE(relative_error(pools[0], pools[1]), state_limit(c.p));
    EXPECT_LE(relative_error(snapshots[0], snapshots[1]), 1e-5);
  }
}

// Verify's outputs and node states, a commit of random tips, and the same with the commit left pending.
struct VerifyResult {
  Buffer out, records, nodes, pool, pending_out;
};

VerifyResult run_verify(Case& c, const std::vector<int64_t>& tips, bool reference, int target, int threads) {
  VerifyResult r;
  const int64_t row_bytes = record_layout(c.p).row_bytes, rows = c.rows(), D = c.p.max_nodes;
  const int64_t elements = c.p.slot_elements();
  r.out = r.pending_out = c.out;
  r.pool = c.pool;
  r.records.bytes.resize(2 * rows * row_bytes);
  r.nodes = Buffer(c.p.state, rows * D * elements);
  CallMemory run(c.p, most, target, threads);
  VerifyLaunch verify{c.inputs(r.out), c.row_views(), c.pool_view(r.pool), c.pool_view(r.pool), {}, {}, {}};
  verify.draft.parents = indices(c.parents);
  verify.records = {.base = r.records.data(), .rows = 2 * rows, .row_stride = row_bytes, .layers = {}};
  verify.node_states = r.nodes.data();
  verify.node_states_dtype = c.p.state;
  verify.node_states_rows = rows;
  verify.node_states_nodes = D;
  verify.node_states_row_stride = D * elements;
  verify.node_states_node_stride = elements;
  const auto verify_function = reference ? reference_verify : cpu_verify_exact;
  EXPECT_EQ(verify_function(c.p, verify, run.execution), KDA_OK);

  Buffer pending_pool = r.pool;
  std::vector<int64_t> pending_rows, next_rows;
  for (int64_t i = 0; i < rows; ++i) {
    pending_rows.push_back(i);
    next_rows.push_back(rows + i);
  }
  CommitLaunch commit{1, c.row_views(), indices(tips), c.pool_view(r.pool), c.pool_view(r.pool), verify.records, {},
                      {}};
  EXPECT_EQ((reference ? reference_commit : cpu_commit_exact)(c.p, commit, run.execution), KDA_OK);

  // The second round: the same tokens again, from the committed states, once pending and once after the plain commit.
  VerifyLaunch pending = verify;
  pending.tokens = c.inputs(r.pending_out);
  pending.node_states = nullptr;
  pending.state = pending.dst = c.pool_view(pending_pool);
  pending.record_rows = indices(next_rows);
  pending.pending = {indices(tips), indices(pending_rows)};
  EXPECT_EQ(verify_function(c.p, pending, run.execution), KDA_OK);
  EXPECT_EQ(pending_pool.bytes, r.pool.bytes);

  Buffer plain_out = c.out;
  VerifyLaunch plain = verify;
  plain.tokens = c.inputs(plain_out);
  plain.node_states = nullptr;
  plain.record_rows = indices(next_rows);
  EXPECT_EQ(verify_function(c.p, plain, run.execution), KDA_OK);
  // A fresh row whose commit stored its state is fresh no longer for the plain call only.
  for (int64_t row = 0; row < rows; ++row) {
    if (!c.has_state[row]) continue;
    const int64_t token = c.p.value_heads * c.p.value_dim * size_of(c.p.io), begin = c.cu[row] * token;
    EXPECT_EQ(std::memcmp(plain_out.data() + begin, r.pending_out.data() + begin, c.cu[row + 1] * token - begin), 0)
        << "row " << row;
  }
  return r;
}

TEST_P(CpuState, VerifyAndCommitMatchReference) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed + 1000);
    Case c(seed, random_problem(random), {random.in(1, 24), 1, 0, random.in(1, 9)});
    SCOPED_TRACE(describe(seed, c.p));
    std::vector<int64_t> tips;
    for (int64_t r = 0; r < c.rows(); ++r) tips.push_back(random.in(-1, c.cu[r + 1] - c.cu[r] - 1));
    const VerifyResult cpu = run_verify(c, tips, false, GetParam(), 2), ref = run_verify(c, tips, true, 0, 1);
    EXPECT_LE(relative_error(cpu.out, ref.out), out_limit(c.p));
    EXPECT_LE(relative_error(cpu.pending_out, ref.pending_out), out_limit(c.p));
    EXPECT_LE(relative_error(cpu.nodes, ref.nodes), state_limit(c.p));
    EXPECT_LE(relative_error(cpu.pool, ref.pool), state_limit(c.p));
  }
}

// Decodes one token of a row from `state` in place and returns its output bytes.
void decode_token(Case& c, int64_t token, Buffer& state, Buffer& out, int target) {
  const std::vector<int64_t> cu = {token, token + 1}, slot = {0};
  DecodeLaunch launch{c.inputs(out), {}, {}, {}};
  launch.rows = {.count = 1, .tokens = c.cu.back(), .cu_seqlens = indices(cu), .slots = indices(slot)};
  launch.state = launch.dst = {.base = state.data(), .dtype = state.dtype, .slots = 1, .slot_stride = 0};
  CallMemory run(c.p, cpu_workspace, target);
  ASSERT_EQ(cpu_decode_exact(c.p, launch, run.execution), KDA_OK);
}

TEST_P(CpuState, EveryRouteGivesTheBitsOfDecode) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed + 2000);
    Case c(seed, random_problem(random), {random.in(1, 24), random.in(1, 24), random.in(1, 3)});
    SCOPED_TRACE(describe(seed, c.p));
    std::vector<int64_t> tips;
    for (int64_t r = 0; r < c.rows(); ++r) tips.push_back(random.in(0, c.cu[r + 1] - c.cu[r] - 1));
    const VerifyResult verify = run_verify(c, tips, false, GetParam(), static_cast<int>(random.in(1, 2)));
    const int64_t n = c.p.slot_elements(), bytes = n * size_of(c.p.state);
    Buffer extended = c.pool, extend_out = c.out, decode_out = c.out;
    ExtendLaunch extend{c.inputs(extend_out), c.row_views(), c.pool_view(extended), c.pool_view(extended), {}};
    CallMemory run(c.p, cpu_workspace, GetParam());
    ASSERT_EQ(cpu_extend_exact(c.p, extend, run.execution), KDA_OK);

    const auto same_out = [&](const Buffer& x, int64_t token) {
      const int64_t row = c.p.value_heads * c.p.value_dim * size_of(c.p.io);
      return std::memcmp(x.bytes.data() + token * row, decode_out.bytes.data() + token * row, row) == 0;
    };
    for (int64_t r = 0; r < c.rows(); ++r) {
      if (c.slots[r] < 0) continue;
      Buffer start(c.p.state, n);
      for (int64_t i = 0; i < n; ++i) start.set(i, c.has_state[r] ? c.pool.at(c.slots[r] * c.slot_stride + i) : 0.0f);
      std::vector<Buffer> states;
      for (int64_t node = 0; node < c.cu[r + 1] - c.cu[r]; ++node) {
        const int64_t parent = c.parents[c.cu[r] + node];
        states.push_back(parent < 0 ? start : states[parent]);
        decode_token(c, c.cu[r] + node, states.back(), decode_out, GetParam());
        EXPECT_TRUE(same_out(verify.out, c.cu[r] + node)) << "row " << r << " node " << node;
        EXPECT_EQ(std::memcmp(verify.nodes.bytes.data() + (r * c.p.max_nodes + node) * bytes,
                              states.back().bytes.data(), bytes),
                  0)
            << "row " << r << " node " << node;
      }
      const std::byte* committed = verify.pool.bytes.data() + c.slots[r] * c.slot_stride * size_of(c.p.state);
      EXPECT_EQ(std::memcmp(committed, states[tips[r]].bytes.data(), bytes), 0) << "row " << r;
      if (c.p.state == DType::bf16) continue;  // extend rounds once, at its end
      Buffer state = start;
      for (int64_t t = c.cu[r]; t < c.cu[r + 1]; ++t) {
        decode_token(c, t, state, decode_out, GetParam());
        EXPECT_TRUE(same_out(extend_out, t)) << "row " << r << " token " << t - c.cu[r];
      }
      EXPECT_EQ(std::memcmp(extended.bytes.data() + c.slots[r] * c.slot_stride * 4, state.bytes.data(), bytes), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, CpuState, testing::ValuesIn(available_targets()),
                         [](const auto& info) { return cpu_target_name(info.param); });

}  // namespace
}  // namespace kda::test
