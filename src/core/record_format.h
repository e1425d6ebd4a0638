// The layout of a verify record row and of a conv record row: one home for reference, CPU and CUDA alike.
//
// A record row is header | node 0 | node 1 | ...; every part starts on a 16-byte boundary.
// Header: RecordHeader, then for each of max_nodes nodes {i32 parent (-1 = the committed state), i32 reserved}.
// A node is, in this order, each part padded to 16 bytes:
//   u          [HV, V] fp32              the correction that was added: S += u k^T
//   decay [HV, K] fp32                   exp(g); fast with a 16-bit gate: log-decay g, fp16 (|error of exp(g)| < 2e-4)
//   k          [H, K] io dtype           as it came
//   k_rnorm    [H] NormFactor            k-hat = k * k_rnorm (1 without qk_l2norm)
// At K = V = 128, H = HV and 16-bit io a node and head takes 1288 bytes + padding (exact) or 1032 (fast).
// The form and the geometry decide every offset; nothing in a call does.
//
// A conv record row is header | x [nodes, C] io dtype, each node's row padded to 16 bytes.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/problem.h"

namespace kda {

constexpr uint32_t kRecordMagic = 0x5244414b;      // "KADR" in memory
constexpr uint32_t kConvRecordMagic = 0x4344414b;  // "KADC"
constexpr int64_t kRecordAlignment = 16;

constexpr int64_t align_up(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

struct RecordHeader {
  uint32_t magic;
  uint32_t version_form;  // KDA_RECORD_VERSION << 16 | (numerics == fast)
  int32_t nodes;          // nodes written
  uint32_t geometry;      // RecordLayout::geometry, so that a row of another geometry is recognised
};
struct RecordParent {
  int32_t parent;
  int32_t reserved;
};
static_assert(sizeof(RecordHeader) == 16 && sizeof(RecordParent) == 8);

// The factor that normalises k, as the sum of two floats. With one float its rounding error e is common to all
// channels: with step 2 and a repeated key every token then scales the state's part along k by 1 + 4e, which is 1.4e-5
// after 128 tokens, beyond the limit. With two, each channel rounds on its own and the errors average out.
struct NormFactor {
  float high = 1.0f, low = 0.0f;
};
static_assert(sizeof(NormFactor) == 8);

// Byte offsets of one record row.
struct RecordLayout {
  int64_t nodes_begin;        // from the start of the row
  int64_t decay, k, k_rnorm;  // from the start of a node; u is at 0
  int64_t node_bytes;
  int64_t row_bytes;
  uint32_t version_form;
  uint32_t geometry;
};

constexpr uint32_t mix_geometry(uint32_t h, uint32_t value) { return (h ^ value) * 16777619u; }

// Fast records of 16-bit gates keep the log-decay in fp16; wider gates keep the decay in fp32, as exact records do.
constexpr bool has_half_decay(const Problem& p) {
  return p.verify_numerics == Numerics::fast && p.gate_input != DType::fp32;
}

constexpr RecordLayout record_layout(const Problem& p) {
  const bool fast = p.verify_numerics == Numerics::fast;
  RecordLayout r{};
  r.nodes_begin = align_up(16 + 8 * int64_t{p.max_nodes}, kRecordAlignment);
  r.decay = align_up(int64_t{p.value_heads} * p.value_dim * 4, kRecordAlignment);
  r.k = r.decay + align_up(int64_t{p.value_heads} * p.key_dim * (has_half_decay(p) ? 2 : 4), kRecordAlignment);
  r.k_rnorm = r.k + align_up(int64_t{p.heads} * p.key_dim * size_of(p.io), kRecordAlignment);
  r.node_bytes = r.k_rnorm + align_up(int64_t{p.heads} * int64_t{sizeof(NormFactor)}, kRecordAlignment);
  r.row_bytes = r.nodes_begin + r.node_bytes * p.max_nodes;
  r.version_form = uint32_t{KDA_RECORD_VERSION} << 16 | (fast ? 1u : 0u);
  uint32_t h = 2166136261u;
  for (uint32_t value : {uint32_t(p.key_dim), uint32_t(p.value_dim), uint32_t(p.heads), uint32_t(p.value_heads),
                         uint32_t(p.io), uint32_t(p.max_nodes), uint32_t(has_half_decay(p))}) {
    h = mix_geometry(h, value);
  }
  r.geometry = h;
  return r;
}

struct ConvRecordLayout {
  int64_t nodes_begin;
  int64_t node_bytes;
  int64_t row_bytes;
  uint32_t version_form;
  uint32_t geometry;
};

constexpr ConvRecordLayout conv_record_layout(const Problem& p, int64_t channels) {
  ConvRecordLayout r{};
  r.nodes_begin = align_up(16 + 8 * int64_t{p.max_nodes}, kRecordAlignment);
  r.node_bytes = align_up(channels * size_of(p.io), kRecordAlignment);
  r.row_bytes = r.nodes_begin + r.node_bytes * p.max_nodes;
  r.version_form = uint32_t{KDA_RECORD_VERSION} << 16;
  r.geometry =
      mix_geometry(mix_geometry(mix_geometry(2166136261u, uint32_t(channels)), uint32_t(p.io)), uint32_t(p.max_nodes));
  return r;
}

}  // namespace kda
