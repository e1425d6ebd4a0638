// Scalar conversions between fp32 and the 16-bit formats: rounding to nearest even, NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "core/types.h"

namespace kda {

inline float float_from_bf16(uint16_t h) { return std::bit_cast<float>(uint32_t{h} << 16); }

inline uint16_t bf16_from_float(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if (f != f) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float float_from_fp16(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16, magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x0400) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float tiny = static_cast<float>(magnitude) * 0x1p-24f;  // subnormal: exact in fp32
  return std::bit_cast<float>(std::bit_cast<uint32_t>(tiny) | sign);
}

inline uint16_t fp16_from_float(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 puts the half-precision units digit at the end of the fp32 mantissa, rounded to even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

// One element of any dtype; memory need not be aligned.
inline float load_element(const std::byte* data, DType dtype, int64_t index) {
  if (dtype == DType::fp32) {
    float f;
    std::memcpy(&f, data + 4 * index, 4);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, data + 2 * index, 2);
  return dtype == DType::bf16 ? float_from_bf16(h) : float_from_fp16(h);
}

inline void store_element(float value, std::byte* data, DType dtype, int64_t index) {
  if (dtype == DType::fp32) {
    std::memcpy(data + 4 * index, &value, 4);
    return;
  }
  const uint16_t h = dtype == DType::bf16 ? bf16_from_float(value) : fp16_from_float(value);
  std::memcpy(data + 2 * index, &h, 2);
}

}  // namespace kda
