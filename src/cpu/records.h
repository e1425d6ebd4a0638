// Reading and writing verify records: the bytes of core/record_format.h.
#pragma once

#include <atomic>
#include <cstring>

#include "core/record_format.h"
#include "core/views.h"

namespace kda::cpu {

// Node parts are padded to 16 bytes and rows may be unaligned only as much as the caller's stride allows.
struct RecordNode {
  const RecordLayout& layout;
  std::byte* data;
  float* correction(int64_t value_head, int64_t value_dim) const {
    return reinterpret_cast<float*>(data) + value_head * value_dim;
  }
  // [K] of a value head: fp32, or fp16 logarithms (has_half_decay).
  std::byte* decay(int64_t value_head, int64_t key_dim, bool half) const {
    return data + layout.decay + value_head * key_dim * size_of(half ? DType::fp16 : DType::fp32);
  }
  std::byte* key(int64_t head, int64_t key_bytes) const { return data + layout.k + head * key_bytes; }
  NormFactor* key_rnorm(int64_t head) const { return reinterpret_cast<NormFactor*>(data + layout.k_rnorm) + head; }
};

// Header of any record row. Layout: RecordLayout or ConvRecordLayout.
template <class Layout>
void write_record_header(std::byte* row, uint32_t magic, const Layout& layout, const int16_t* parents, int nodes) {
  const RecordHeader header{
      .magic = magic, .version_form = layout.version_form, .nodes = nodes, .geometry = layout.geometry};
  std::memcpy(row, &header, sizeof header);
  for (int i = 0; i < nodes; ++i) {
    const RecordParent parent{.parent = parents[i], .reserved = 0};
    std::memcpy(row + sizeof header + i * sizeof parent, &parent, sizeof parent);
  }
}

// The path from a root to `tip`, oldest first.
struct RecordPath {
  int length = 0;
  int16_t nodes[kMaxDraftNodes];
  bool contains(int64_t node) const {
    for (int i = 0; i < length; ++i) {
      if (nodes[i] == node) return true;
    }
    return false;
  }
};

// Reads the path to tip (>= 0) from an untrusted record row. Returns 0 or the KDA_DEVICE_* bit that says why not.
template <class Layout>
uint32_t read_record_path(const std::byte* row, uint32_t magic, const Layout& layout, int max_nodes, int64_t tip,
                          RecordPath& path) {
  RecordHeader header;
  std::memcpy(&header, row, sizeof header);
  if (header.magic != magic || header.version_form != layout.version_form || header.geometry != layout.geometry ||
      header.nodes < 0 || header.nodes > max_nodes) {
    return KDA_DEVICE_BAD_RECORD;
  }
  if (tip >= header.nodes) return KDA_DEVICE_BAD_TIP;
  int count = 0;
  int16_t reversed[kMaxDraftNodes];
  for (int64_t node = tip; node >= 0;) {
    reversed[count++] = static_cast<int16_t>(node);
    RecordParent parent;
    std::memcpy(&parent, row + sizeof header + node * sizeof parent, sizeof parent);
    if (parent.parent < -1 || parent.parent >= node) return KDA_DEVICE_BAD_RECORD;
    node = parent.parent;
  }
  path.length = count;
  for (int i = 0; i < count; ++i) path.nodes[i] = reversed[count - 1 - i];
  return 0;
}

inline void report_device_status(uint32_t* status, uint32_t bits) {
  if (status != nullptr && bits != 0) std::atomic_ref<uint32_t>(*status).fetch_or(bits, std::memory_order_relaxed);
}

}  // namespace kda::cpu
