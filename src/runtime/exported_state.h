// The byte image that kda_pool_snapshot writes: header, then for each layer the slot's state and conv window, compact.
// Little-endian, like every machine the library runs on. Images come from outside: restore trusts none of it.
#pragma once

#include <cstdint>

#include "runtime/pool_layout.h"

namespace kda {

constexpr uint32_t kExportedStateMagic = 0x5344414b;  // "KADS" in memory

struct ExportedStateHeader {
  uint32_t magic;
  uint32_t version;  // KDA_EXPORTED_STATE_VERSION
  int32_t layers, heads, value_heads, key_dim, value_dim, conv_width;
  int32_t state_dtype, state_layout, conv_dtype, conv_layout;  // DType, StateLayout, DType, ConvLayout
  uint64_t payload_bytes;
  uint64_t checksum;  // exported_state_checksum of the payload
  bool operator==(const ExportedStateHeader&) const = default;
};
static_assert(sizeof(ExportedStateHeader) == 64);

// The header of an image of one slot, with checksum 0.
ExportedStateHeader exported_state_header(const Problem& problem, int32_t layers);

constexpr uint64_t kExportedStateSeed = 14695981039346656037ull;
// FNV-1a over 8-byte words and the tail's bytes: guards against cut and mixed-up images, not against forgery.
uint64_t exported_state_checksum(const void* data, uint64_t bytes, uint64_t seed = kExportedStateSeed);

}  // namespace kda
