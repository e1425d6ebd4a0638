// The convolution and move kernels of every SIMD target this machine has, against the reference kernels and against
// each other.
#include <gtest/gtest.h>

#include <numeric>

#include "cpu/fixture.h"

namespace kda::test {
namespace {

struct ConvCase {
  Problem p;
  Random random;
  int64_t channels, slot_count, slot_elements;
  std::vector<int64_t> cu, slots, parents, tips, dst;
  std::vector<uint8_t> has_state;
  Buffer x, weight, bias, pool, out;

  explicit ConvCase(uint64_t seed) : random(seed) {
    const DType types[] = {DType::fp32, DType::bf16, DType::fp16};
    p.conv_width = static_cast<int>(random.in(2, 4));
    p.heads = p.value_heads = 1;
    p.key_dim = static_cast<int>(random.in(1, 200));
    p.value_dim = static_cast<int>(random.in(1, 256));
    channels = p.conv_channels();
    p.io = types[random.in(0, 2)];
    p.conv_state = random.chance(0.5) ? p.io : DType::fp32;
    p.conv_weight = random.chance(0.5) ? p.io : DType::fp32;
    p.conv_layout = random.chance(0.5) ? ConvLayout::wc : ConvLayout::cw;
    p.max_nodes = 16;
    cu = {random.in(0, 1)};
    const int64_t rows = random.in(1, 4);
    slot_count = rows + 2;
    slot_elements = (p.conv_width - 1) * channels;
    pool = Buffer(p.conv_state, slot_count * (slot_elements + 4));
    for (int64_t r = 0; r < rows; ++r) {
      cu.push_back(cu.back() + random.in(0, 16));
      slots.push_back(random.chance(0.1) ? -1 : r + 1);
      has_state.push_back(!random.chance(0.2));
      for (int64_t i = 0; has_state.back() && i < slot_elements; ++i) {
        pool.set((r + 1) * (slot_elements + 4) + i, random.normal());
      }
      for (int64_t i = 0; i < cu[r + 1] - cu[r]; ++i) {
        parents.push_back(random.chance(0.5) ? i - 1 : random.in(-1, i - 1));
      }
      tips.push_back(random.in(-1, cu[r + 1] - cu[r] - 1));
    }
    parents.insert(parents.begin(), cu[0], 0);
    p.max_rows = rows;
    p.max_tokens = cu.back() + 1;
    fill(x, p.io, cu.back() * channels);
    fill(weight, p.conv_weight, channels * p.conv_width);
    fill(bias, p.conv_weight, channels);
    out = Buffer(p.io, cu.back() * channels);
  }
  void fill(Buffer& b, DType dtype, int64_t n) {
    b = Buffer(dtype, n);
    for (int64_t i = 0; i < n; ++i) b.set(i, random.normal());
  }
  int64_t rows() const { return static_cast<int64_t>(slots.size()); }
  ConvPool pool_view(Buffer& b) const {
    const bool wc = p.conv_layout == ConvLayout::wc;
    return {.base = b.data(),
            .dtype = b.dtype,
            .slots = slot_count,
            .slot_stride = slot_elements + 4,
            .window_stride = wc ? channels : 1,
            .channel_stride = wc ? 1 : p.conv_width - 1};
  }
  ConvLaunch launch(Buffer& output, Buffer& state) {
    ConvLaunch l;
    l.x = {.data = x.data(), .dtype = p.io, .token_stride = channels};
    l.out = {.data = output.data(), .dtype = p.io, .token_stride = channels};
    l.channels = channels;
    l.weight = weight.data();
    l.weight_stride = p.conv_width;
    l.bias = bias.data();
    l.weight_dtype = p.conv_weight;
    l.rows = {.count = rows(),
              .tokens = cu.back(),
              .cu_seqlens = indices(cu),
              .slots = indices(slots),
              .has_state = {.data = has_state.data()}};
    l.state = l.dst = pool_view(state);
    return l;
  }
  double limit() const { return p.io == DType::fp32 ? 1e-5 : p.io == DType::bf16 ? 2.5e-3 : 6e-4; }
};

int64_t most(const Problem& p) { return std::max(cpu_workspace(p), reference_move_workspace(p)); }

class CpuConv : public testing::TestWithParam<int> {};

TEST_P(CpuConv, ExtendMatchesReferenceAndDecode) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    ConvCase c(seed);
    SCOPED_TRACE(testing::Message() << "seed " << seed << " W " << c.p.conv_width << " C " << c.channels);
    std::vector<int64_t> rows = {0, 0, 0}, positions = {0, 1, c.cu[1] - c.cu[0]}, to = {0, 1, 2};
    Buffer outs[2], pools[2], snapshots[2];
    CallMemory run(c.p, most, GetParam(), 2);
    for (int i = 0; i < 2; ++i) {
      outs[i] = c.out;
      pools[i] = c.pool;
      snapshots[i] = Buffer(DType::fp16, 3 * c.slot_elements);
      ConvLaunch launch = c.launch(outs[i], pools[i]);
      ConvPool pool = c.pool_view(snapshots[i]);
      pool.slots = 3;
      pool.slot_stride = c.slot_elements;
      launch.snapshots = {indices(rows), indices(positions), indices(to), pool};
      ASSERT_EQ((i == 0 ? cpu_conv_extend : reference_conv_extend)(c.p, launch, run.execution), KDA_OK);
    }
    EXPECT_LE(relative_error(outs[0], outs[1]), c.limit());
    EXPECT_EQ(pools[0].bytes, pools[1].bytes);  // windows hold inputs: nothing is computed
    EXPECT_EQ(snapshots[0].bytes, snapshots[1].bytes);

    Buffer decoded = c.pool, out = outs[0];
    for (int64_t t = 0; t < 16; ++t) {
      std::vector<int64_t> cu = {0, 0}, slot = {0};
      for (int64_t r = 0; r < c.rows(); ++r) {
        if (c.cu[r] + t >= c.cu[r + 1]) continue;
        cu = {c.cu[r] + t, c.cu[r] + t + 1};
        slot[0] = c.slots[r];
        const uint8_t has_state = t > 0 || c.has_state[r];
        ConvLaunch launch = c.launch(out, decoded);
        launch.rows = {.count = 1,
                       .tokens = c.cu.back(),
                       .cu_seqlens = indices(cu),
                       .slots = indices(slot),
                       .has_state = {.data = &has_state}};
        ASSERT_EQ(cpu_conv_decode(c.p, launch, run.execution), KDA_OK);
      }
    }
    EXPECT_EQ(out.bytes, outs[0].bytes);
    for (int64_t r = 0; r < c.rows(); ++r) {  // an empty fresh row is zeroed by extend only
      if (c.cu[r] == c.cu[r + 1] || c.slots[r] < 0) continue;
      const int64_t stride = (c.slot_elements + 4) * size_of(c.p.conv_state), at = c.slots[r] * stride;
      EXPECT_EQ(std::memcmp(decoded.data() + at, pools[0].data() + at, stride), 0) << "row " << r;
    }
  }
}

TEST_P(CpuConv, VerifyCommitAndPendingMatchReference) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    ConvCase c(seed + 500);
    SCOPED_TRACE(testing::Message() << "seed " << seed << " W " << c.p.conv_width << " C " << c.channels);
    const int64_t row_bytes = conv_record_layout(c.p, c.channels).row_bytes, rows = c.rows();
    std::vector<int64_t> first(rows), second(rows);
    std::iota(first.begin(), first.end(), 0);
    std::iota(second.begin(), second.end(), rows);
    Buffer outs[2], pending_outs[2], pools[2], pending_pools[2], records[2];
    for (int i = 0; i < 2; ++i) {
      outs[i] = pending_outs[i] = c.out;
      pools[i] = pending_pools[i] = c.pool;
      records[i].bytes.resize(2 * rows * row_bytes);
      CallMemory run(c.p, most, GetParam(), 2);
      ConvLaunch verify = c.launch(outs[i], pools[i]);
      verify.draft.parents = indices(c.parents);
      verify.records = {.base = records[i].data(), .rows = 2 * rows, .row_stride = row_bytes, .layers = {}};
      const auto verify_function = i == 0 ? cpu_conv_verify : reference_conv_verify;
      ASSERT_EQ(verify_function(c.p, verify, run.execution), KDA_OK);
      ConvCommitLaunch commit;
      commit.channels = c.channels;
      commit.rows = verify.rows;
      commit.rows.cu_seqlens = {};
      commit.tips = indices(c.tips);
      commit.state = commit.dst = c.pool_view(pools[i]);
      commit.records = verify.records;
      ASSERT_EQ((i == 0 ? cpu_conv_commit : reference_conv_commit)(c.p, commit, run.execution), KDA_OK);
      ConvLaunch pending = c.launch(pending_outs[i], pending_pools[i]);
      pending.draft = verify.draft;
      pending.records = verify.records;
      pending.record_rows = indices(second);
      pending.pending = {indices(c.tips), indices(first)};
      ASSERT_EQ(verify_function(c.p, pending, run.execution), KDA_OK);
      EXPECT_EQ(pending_pools[i].bytes, pools[i].bytes);
    }
    EXPECT_LE(relative_error(outs[0], outs[1]), c.limit());
    EXPECT_LE(relative_error(pending_outs[0], pending_outs[1]), c.limit());
    EXPECT_EQ(pools[0].bytes, pools[1].bytes);
    EXPECT_EQ(records[0].bytes, records[1].bytes);
  }
}

TEST_P(CpuConv, MoveIsOneAssignment) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    ConvCase c(seed + 900);
    Random& random = c.random;
    c.p.state = random.chance(0.5) ? DType::fp32 : DType::bf16;
    c.p.null_slot0 = random.chance(0.3);
    const int64_t slots = 7, n = c.p.slot_elements(), W1 = c.slot_elements;
    std::vector<int64_t> from, to(slots);
    std::iota(to.begin(), to.end(), 0);
    std::shuffle(to.begin(), to.end(), random.engine);
    for (int64_t i = 0; i < slots; ++i) from.push_back(random.in(-1, slots - 1));
    Buffer state, window, states[2], windows[2];
    c.fill(state, c.p.state, slots * n);
    c.fill(window, c.p.conv_state, slots * W1);
    for (int i = 0; i < 2; ++i) {
      states[i] = state;
      windows[i] = window;
      CallMemory run(c.p, most, GetParam(), 2);
      MoveLaunch move;
      move.source = move.destination = {.base = states[i].data(), .dtype = c.p.state, .slots = slots, .slot_stride = n};
      move.source_slots = indices(from);
      move.destination_slots = indices(to);
      ASSERT_EQ((i == 0 ? cpu_move : reference_move)(c.p, move, run.execution), KDA_OK);
      ConvMoveLaunch conv;
      conv.channels = c.channels;
      conv.source = c.pool_view(windows[i]);
      conv.source.slots = slots;
      conv.source.slot_stride = W1;
      conv.destination = conv.source;
      conv.source_slots = indices(from);
      conv.destination_slots = indices(to);
      ASSERT_EQ((i == 0 ? cpu_conv_move : reference_conv_move)(c.p, conv, run.execution), KDA_OK);
    }
    EXPECT_EQ(states[0].bytes, states[1].bytes);
    EXPECT_EQ(windows[0].bytes, windows[1].bytes);
    for (int64_t i = 0; i < slots; ++i) {
      const bool skipped = from[i] < 0 || (c.p.null_slot0 && (from[i] == 0 || to[i] == 0));
      const int64_t bytes = n * size_of(c.p.state), source = skipped ? to[i] : from[i];
      EXPECT_EQ(std::memcmp(states[0].data() + to[i] * bytes, state.data() + source * bytes, bytes), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, CpuConv, testing::ValuesIn(available_targets()),
                         [](const auto& info) { return cpu_target_name(info.param); });

}  // namespace
}  // namespace kda::test
