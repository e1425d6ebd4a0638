#include "cli/bench/workload.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace kda::cli::bench {
namespace {

constexpr int kConvWidth = 4;

int64_t bytes_of(kda_dtype dtype) { return dtype == KDA_FP32 ? 4 : 2; }

}  // namespace

void Workload::Buffer::fill(kda_dtype type, int64_t count, std::mt19937& random, float scale, float shift) {
  dtype = type;
  bytes.assign(count * bytes_of(type), std::byte{0});
  std::normal_distribution<float> normal;
  for (int64_t i = 0; scale != 0 && i < count; ++i) {
    const float value = scale * normal(random) + shift;
    if (type == KDA_FP32) {
      std::memcpy(bytes.data() + 4 * i, &value, 4);
    } else {
      const auto high = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
      std::memcpy(bytes.data() + 2 * i, &high, 2);
    }
  }
}

double Workload::Buffer::at(int64_t i) const {
  if (dtype == KDA_FP32) {
    float value;
    std::memcpy(&value, bytes.data() + 4 * i, 4);
    return value;
  }
  uint16_t high;
  std::memcpy(&high, bytes.data() + 2 * i, 2);
  return std::bit_cast<float>(uint32_t{high} << 16);
}

Workload::Workload(const Context& context, const Spec& spec, int32_t backend, int64_t sets) : spec_(spec), sets_(sets) {
  kda_problem p = problem();
  p.backend = backend;
  p.operations = KDA_OPERATION_BIT(spec.operation);
  if (spec.operation == KDA_COMMIT) p.operations |= KDA_OPERATION_BIT(KDA_VERIFY);
  p.layers = spec.layers;
  p.max_rows = spec.rows;
  p.max_tokens = int64_t{spec.rows} * spec.tokens;
  const bool draft = spec.operation == KDA_VERIFY || spec.operation == KDA_COMMIT;
  p.max_nodes = draft ? spec.tokens : 1;
  p.heads = spec.heads;
  p.key_dim = spec.dim;
  p.io_dtype = KDA_BF16;
  p.state_dtype = spec.state;
  p.extend_numerics = spec.numerics;
  p.verify_numerics = spec.numerics;
  if (spec.conv()) p.conv_width = kConvWidth;
  plan_ = std::make_unique<Plan>(context, p);
  workspace_.resize(plan_->info().workspace_bytes + 64);
  call_ = args<kda_call>();
  const auto address = reinterpret_cast<uintptr_t>(workspace_.data());
  call_.workspace = reinterpret_cast<void*>((address + 63) / 64 * 64);
  call_.workspace_bytes = plan_->info().workspace_bytes;
  bind_inputs();
}

void Workload::bind_inputs() {
  const Spec& s = spec_;
  std::mt19937 random(12345);
  const int64_t T = int64_t{s.rows} * s.tokens, H = s.heads, D = s.dim, slots_in_set = s.rows;
  for (int r = 0; r <= s.rows; ++r) cu_.push_back(r * s.tokens);
  for (int64_t r = 0; r < s.rows; ++r) {
    for (int i = 0; i < s.tokens; ++i) parents_.push_back(s.tree ? (i + 1) / 2 - 1 : i - 1);
    tips_.push_back(s.tokens - 1);
  }
  for (int64_t i = 0; i < sets_ * slots_in_set; ++i) slots_.push_back(static_cast<int32_t>(i));
  cu = Tensor(cu_.data(), Element::int32, {s.rows + 1});
  parents = Tensor(parents_.data(), Element::int32, {T});
  tips = Tensor(tips_.data(), Element::int32, {s.rows});
  slots = Tensor(slots_.data(), Element::int32, {sets_ * slots_in_set});
  if (s.conv()) {
    const int64_t C = 3 * H * D;
    q_.fill(KDA_BF16, T * C, random, 1);
    out_.fill(KDA_BF16, T * C, random, 0);
    weight_.fill(KDA_BF16, C * kConvWidth, random, 0.5f);
    pool_.fill(KDA_BF16, sets_ * slots_in_set * (kConvWidth - 1) * C, random, 1);
    q = Tensor(q_.data(), KDA_BF16, {T, C});
    out = Tensor(out_.data(), KDA_BF16, {T, C});
    weight = Tensor(weight_.data(), KDA_BF16, {C, kConvWidth});
    pool = Tensor(pool_.data(), KDA_BF16, {sets_ * slots_in_set, kConvWidth - 1, C});
    set_bytes_ = slots_in_set * (kConvWidth - 1) * C * 2;
    return;
  }
  q_.fill(KDA_BF16, T * H * D, random, 1);
  k_.fill(KDA_BF16, T * H * D, random, 1);
  v_.fill(KDA_BF16, T * H * D, random, 1);
  a_.fill(KDA_BF16, T * H * D, random, 1);
  b_.fill(KDA_BF16, T * H, random, 1);
  A_log_.fill(KDA_FP32, H, random, 0.3f, 1);
  dt_bias_.fill(KDA_FP32, H * D, random, 1, -4);
  out_.fill(KDA_BF16, T * H * D, random, 0);
  // With several layers every set holds a slot of each layer.
  pool_.fill(s.state, sets_ * slots_in_set * s.layers * H * D * D, random, 0.1f);
  q = Tensor(q_.data(), KDA_BF16, {T, H, D});
  k = Tensor(k_.data(), KDA_BF16, {T, H, D});
  v = Tensor(v_.data(), KDA_BF16, {T, H, D});
  a = Tensor(a_.data(), KDA_BF16, {T, H, D});
  b = Tensor(b_.data(), KDA_BF16, {T, H});
  A_log = Tensor(A_log_.data(), KDA_FP32, {H});
  dt_bias = Tensor(dt_bias_.data(), KDA_FP32, {H * D});
  out = Tensor(out_.data(), KDA_BF16, {T, H, D});
  pool = Tensor(pool_.data(), s.state, {sets_ * slots_in_set, H, D, D});
  set_bytes_ = slots_in_set * s.layers * H * D * D * bytes_of(s.state);
  if (s.operation != KDA_VERIFY && s.operation != KDA_COMMIT) return;
  const int64_t stride = static_cast<int64_t>((plan_->info().record_row_bytes + 63) / 64 * 64);
  records_.fill(KDA_BF16, s.rows * s.layers * stride / 2 + 32, random, 0);
  const auto address = reinterpret_cast<uintptr_t>(records_.data());
  records = Tensor(reinterpret_cast<void*>((address + 63) / 64 * 64), Element::uint8, {s.rows, stride});
  if (s.operation != KDA_COMMIT) return;
  // Records of every layer, made by a verify.
  for (int layer = 0; layer < s.layers; ++layer) {
    kda_verify_args verify = args<kda_verify_args>();
    verify.tokens = {q, k, v, a, b, A_log, dt_bias, out, 0, 0};
    const Tensor first = slots.slice(0, 0, s.rows);
    const Tensor layer_records(records.data<std::byte>() + layer * s.rows * stride, Element::uint8, {s.rows, stride});
    verify.rows.cu_seqlens = cu;
    verify.rows.slots = first;
    verify.rows.state = pool;
    verify.records = layer_records;
    plan_->verify(verify, &call_);
  }
}

void Workload::run(int64_t set) {
  const Tensor rows_slots = slots.slice(0, set * spec_.rows, (set + 1) * spec_.rows);
  kda_rows rows = {};
  rows.cu_seqlens = cu;
  rows.slots = rows_slots;
  rows.state = pool;
  const kda_tokens tokens = {q, k, v, a, b, A_log, dt_bias, out, 0, 0};
  switch (spec_.operation) {
    case KDA_EXTEND: {
      kda_extend_args extend = args<kda_extend_args>();
      extend.tokens = tokens;
      extend.rows = rows;
      return plan_->extend(extend, &call_);
    }
    case KDA_DECODE: {
      kda_decode_args decode = args<kda_decode_args>();
      decode.tokens = tokens;
      decode.rows = rows;
      return plan_->decode(decode, &call_);
    }
    case KDA_VERIFY: {
      kda_verify_args verify = args<kda_verify_args>();
      verify.tokens = tokens;
      verify.rows = rows;
      verify.parents = parents;
      verify.records = records;
      return plan_->verify(verify, &call_);
    }
    case KDA_COMMIT: {
      kda_commit_args commit = args<kda_commit_args>();
      commit.layers = spec_.layers;
      commit.rows = rows;
      commit.rows.cu_seqlens = nullptr;
      commit.tips = tips;
      commit.records = records;
      // Layer l has its own part of the pool: the slots of all sets, one layer after another.
      commit.state_layers.stride = commit.dst_layers.stride = static_cast<int64_t>(pool_.bytes.size()) / spec_.layers;
      commit.record_layers.stride = spec_.rows * records.stride(0);
      return plan_->commit(commit, &call_);
    }
    default: {
      kda_conv_args conv = args<kda_conv_args>();
      conv.x = q;
      conv.weight = weight;
      conv.out = out;
      conv.rows = rows;
      return spec_.operation == KDA_CONV_DECODE ? plan_->conv_decode(conv, &call_) : plan_->conv_extend(conv, &call_);
    }
  }
}

std::vector<double> Workload::outputs() const {
  std::vector<double> x;
  for (size_t i = 0; i < out_.bytes.size() / 2; ++i) x.push_back(out_.at(static_cast<int64_t>(i)));
  return x;
}

std::vector<double> Workload::states() const {
  std::vector<double> x;
  const int64_t n = set_bytes_ / spec_.layers / bytes_of(pool_.dtype);
  for (int64_t i = 0; i < n; ++i) x.push_back(pool_.at(i));
  return x;
}

}  // namespace kda::cli::bench
