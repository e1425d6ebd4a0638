#include "runtime/exported_state.h"

#include <cstring>

namespace kda {

ExportedStateHeader exported_state_header(const Problem& problem, int32_t layers) {
  ExportedStateHeader h{};
  h.magic = kExportedStateMagic;
  h.version = KDA_EXPORTED_STATE_VERSION;
  h.layers = layers;
  h.heads = problem.heads;
  h.value_heads = problem.value_heads;
  h.key_dim = problem.key_dim;
  h.value_dim = problem.value_dim;
  h.conv_width = problem.conv_width;
  h.state_dtype = static_cast<int32_t>(problem.state);
  h.state_layout = static_cast<int32_t>(problem.state_layout);
  int64_t layer_bytes = problem.slot_elements() * size_of(problem.state);
  if (problem.conv_width > 0) {
    h.conv_dtype = static_cast<int32_t>(problem.conv_state);
    h.conv_layout = static_cast<int32_t>(problem.conv_layout);
    layer_bytes += (problem.conv_width - 1) * problem.conv_channels() * size_of(problem.conv_state);
  }
  h.payload_bytes = static_cast<uint64_t>(layer_bytes) * static_cast<uint64_t>(layers);
  return h;
}

uint64_t exported_state_checksum(const void* data, uint64_t bytes, uint64_t seed) {
  constexpr uint64_t kPrime = 1099511628211ull;
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t hash = seed;
  for (; bytes >= 8; p += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    hash = (hash ^ word) * kPrime;
  }
  for (; bytes > 0; ++p, --bytes) hash = (hash ^ *p) * kPrime;
  return hash;
}

}  // namespace kda
