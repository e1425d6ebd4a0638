// A small geometry with memory for every operation, and calls that are right. Tests change one thing and look at the
// answer. Memory that a call may not read or write holds NaN.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kda/kda.hpp"

namespace kda_test {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// 64-byte aligned bytes.
class Bytes {
 public:
  explicit Bytes(size_t size) : storage_(size + 64) {}
  std::byte* data() { return storage_.data() + (64 - reinterpret_cast<uintptr_t>(storage_.data()) % 64) % 64; }

 private:
  std::vector<std::byte> storage_;
};

// An index tensor that owns its values.
class List {
 public:
  List(std::initializer_list<int32_t> values) : List(std::vector<int32_t>(values)) {}
  explicit List(std::vector<int32_t> values)
      : values_(std::make_shared<std::vector<int32_t>>(std::move(values))),
        tensor_(values_->data(), kda::Element::int32, {static_cast<int64_t>(values_->size())}) {}
  operator const DLTensor*() const { return tensor_; }
  int32_t& operator[](size_t i) { return (*values_)[i]; }
  int32_t* data() { return values_->data(); }

 private:
  std::shared_ptr<std::vector<int32_t>> values_;
  kda::Tensor tensor_;
};

struct World {
  static constexpr int64_t H = 2, HV = 4, K = 8, V = 6, W = 4, kSlots = 10, kRows = 4, kTokens = 12, kNodes = 4;
  static constexpr int64_t C = 2 * H * K + HV * V;

  static kda_problem default_problem() {
    kda_problem p = kda::problem();
    p.backend = KDA_BACKEND_REFERENCE;
    p.max_rows = kRows;
    p.max_tokens = kTokens;
    p.max_nodes = kNodes;
    p.max_snapshots = 6;
    p.layers = 2;
    p.heads = H;
    p.value_heads = HV;
    p.key_dim = K;
    p.value_dim = V;
    p.conv_width = W;
    p.io_dtype = KDA_FP32;
    return p;
  }

  explicit World(const kda_problem& problem = default_problem())
      : plan(context, problem),
        workspace_memory(plan.info().workspace_bytes),
        record_memory(kRecordRows * plan.info().record_row_bytes),
        conv_record_memory(kRecordRows * plan.info().conv_record_row_bytes) {
    resources = kda::args<kda_call>();
    resources.workspace = workspace_memory.data();
    resources.workspace_bytes = plan.info().workspace_bytes;
    resources.device_status = &device_status;
    const auto record_bytes = static_cast<int64_t>(plan.info().record_row_bytes);
    const auto conv_record_bytes = static_cast<int64_t>(plan.info().conv_record_row_bytes);
    records = kda::Tensor(record_memory.data(), kda::Element::uint8, {kRecordRows, record_bytes});
    conv_records = kda::Tensor(conv_record_memory.data(), kda::Element::uint8, {kRecordRows, conv_record_bytes});
  }

  static constexpr int64_t kRecordRows = 2 * kRows;
  kda::Context context;
  kda::Plan plan;
  Bytes workspace_memory, record_memory, conv_record_memory;
  uint32_t device_status = 0;
  kda_call resources;
  std::vector<std::vector<float>> memory;
  std::mt19937 random{7};

  kda::Tensor q = tensor({kTokens, H, K}), k = tensor({kTokens, H, K}), v = tensor({kTokens, HV, V}),
              a = tensor({kTokens, HV, K}), b = tensor({kTokens, HV}), A_log = tensor({HV}), dt_bias = tensor({HV * K}),
              out = tensor({kTokens, HV, V}), state = tensor({kSlots, HV, V, K}),
              other_pool = tensor({kSlots, HV, V, K}), node_states = tensor({kRecordRows, kNodes, HV, V, K}),
              x = tensor({kTokens, C}), conv_out = tensor({kTokens, C}), weight = tensor({C, W}), bias = tensor({C}),
              conv_state = tensor({kSlots, W - 1, C});
  kda::Tensor records, conv_records;
  List cu{0, 3, 3, 7}, slots{5, 1, 7}, tips{2, -1, 3}, record_rows{0, 1, 2}, pending_record_rows{4, 5, 6};
  List snapshot_rows{0, 2, 2}, snapshot_positions{1, 0, 4}, snapshot_slots{0, 2, 4};
  List no_rows = List(std::vector<int32_t>{}), only_zero{0};

  // Random values in memory of its own.
  kda::Tensor tensor(std::initializer_list<int64_t> shape) {
    size_t count = 1;
    for (int64_t size : shape) count *= static_cast<size_t>(size);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    memory.emplace_back(count);
    for (float& value : memory.back()) value = normal(random);
    return kda::Tensor(memory.back().data(), KDA_FP32, shape);
  }

  kda_tokens tokens(int64_t count) {
    // A slice keeps its tensor's memory; the tensors live as long as the world.
    auto first = [&](const kda::Tensor& t) -> const DLTensor* {
      sliced.push_back(std::make_unique<kda::Tensor>(t.slice(0, 0, count)));
      return *sliced.back();
    };
    kda_tokens t{};
    t.q = first(q), t.k = first(k), t.v = first(v), t.a = first(a), t.b = first(b), t.out = first(out);
    t.A_log = A_log, t.dt_bias = dt_bias;
    return t;
  }
  std::vector<std::unique_ptr<kda::Tensor>> sliced;

  kda_rows rows() {
    kda_rows r{};
    r.cu_seqlens = cu, r.slots = slots, r.state = state;
    return r;
  }
  kda_snapshots snapshots() { return {snapshot_rows, snapshot_positions, snapshot_slots, nullptr}; }

  kda_extend_args extend_args() {
    auto args = kda::args<kda_extend_args>();
    args.tokens = tokens(kTokens), args.rows = rows(), args.snapshots = snapshots();
    return args;
  }
  kda_decode_args decode_args() {
    auto args = kda::args<kda_decode_args>();
    args.tokens = tokens(3), args.rows = rows();
    args.rows.cu_seqlens = nullptr;
    return args;
  }
  kda_verify_args verify_args() {
    auto args = kda::args<kda_verify_args>();
    args.tokens = tokens(kTokens), args.rows = rows();
    args.records = records, args.record_rows = record_rows;
    return args;
  }
  // The next round after verify_args wrote its records to pending_record_rows.
  kda_verify_args pending_args() {
    auto first = verify_args();
    first.record_rows = pending_record_rows;
    plan.verify(first, &resources);
    auto args = verify_args();
    args.pending_tips = tips, args.pending_record_rows = pending_record_rows;
    return args;
  }
  kda_commit_args commit_args() {
    plan.verify(verify_args(), &resources);
    auto args = kda::args<kda_commit_args>();
    args.rows = rows();
    args.rows.cu_seqlens = nullptr;
    args.tips = tips, args.records = records, args.record_rows = record_rows;
    return args;
  }
  kda_move_args move_args() {
    auto args = kda::args<kda_move_args>();
    args.source = state, args.source_slots = slots, args.destination_slots = snapshot_slots;
    return args;
  }
  kda_conv_args conv_args() {
    auto args = kda::args<kda_conv_args>();
    args.x = x, args.out = conv_out, args.weight = weight, args.bias = bias;
    args.rows = rows();
    args.rows.state = conv_state;
    return args;
  }
  kda_commit_args conv_commit_args() {
    auto verify = conv_args();
    verify.records = conv_records, verify.record_rows = record_rows;
    plan.conv_verify(verify, &resources);
    auto args = kda::args<kda_commit_args>();
    args.rows = rows();
    args.rows.cu_seqlens = nullptr;
    args.rows.state = conv_state;
    args.tips = tips, args.records = conv_records, args.record_rows = record_rows;
    return args;
  }
};

}  // namespace kda_test
