// The rule of struct_size: a shorter struct comes from an older caller, whose missing fields are 0; a longer one from a
// newer caller, and is accepted if it does not use what this version does not know.
#pragma once

#include <algorithm>
#include <cstring>

#include "core/status.h"
#include "core/text.h"

namespace kda {

constexpr uint32_t kLargestStruct = 1 << 16;  // a larger struct_size is garbage, and the tail may not be readable

template <class Struct>
Status read_struct(const Struct* caller, const char* name, Struct* copy, const ErrorSink& sink) {
  std::memset(static_cast<void*>(copy), 0, sizeof(Struct));
  if (caller == nullptr) return sink.fail(KDA_E_NULL, FixedText<64>("%s: NULL", name), "a pointer to the struct");
  const uint32_t size = caller->struct_size;
  if (size < sizeof(uint32_t) || size > kLargestStruct) {
    return sink.fail(KDA_E_STRUCT_SIZE, FixedText<96>("%s.struct_size = %u", name, size),
                     FixedText<96>("%zu (this version's size)", sizeof(Struct)));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(caller);
  for (uint32_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] == 0) continue;
    return sink.fail(KDA_E_STRUCT_SIZE, FixedText<128>("%s: a value at byte %u, beyond this version's struct", name, i),
                     FixedText<96>("%zu bytes, and zeros after them", sizeof(Struct)));
  }
  std::memcpy(static_cast<void*>(copy), caller, std::min<size_t>(size, sizeof(Struct)));
  return KDA_OK;
}

// Writes a result into a caller's struct: as much of it as the caller knows. struct_size stays the caller's.
template <class Struct>
Status write_struct(const Struct& value, Struct* caller) {
  if (caller == nullptr) return KDA_E_NULL;
  const uint32_t size = caller->struct_size;
  if (size < sizeof(uint32_t) || size > kLargestStruct) return KDA_E_STRUCT_SIZE;
  std::memcpy(static_cast<void*>(caller), &value, std::min<size_t>(size, sizeof(Struct)));
  if (size > sizeof(Struct)) std::memset(reinterpret_cast<char*>(caller) + sizeof(Struct), 0, size - sizeof(Struct));
  caller->struct_size = size;
  return KDA_OK;
}

}  // namespace kda
