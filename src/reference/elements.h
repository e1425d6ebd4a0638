// Reading and writing one element of any listed dtype as double. Rounding is to nearest, ties to even.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/types.h"

namespace kda::reference {

inline uint16_t to_bf16(double x) {
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(x));
  if (std::isnan(x)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline double from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t to_fp16(double x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7e00;
  if (magnitude >= 65520) return sign | 0x7c00;
  if (magnitude == 0) return sign;  // frexp gives it exponent 0
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int quantum = std::max(exponent - 11, -24);  // the value is a multiple of 2^quantum
  const int units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -quantum)));
  return static_cast<uint16_t>(sign | ((quantum + 24) * 1024 + units));
}

inline double from_fp16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 31) magnitude = fraction == 0 ? HUGE_VAL : std::nan("");
  return bits & 0x8000 ? -magnitude : magnitude;
}

inline double load(DType dtype, const std::byte* base, int64_t index) {
  if (dtype == DType::fp32) {
    float x;
    std::memcpy(&x, base + index * 4, 4);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, base + index * 2, 2);
  return dtype == DType::bf16 ? from_bf16(bits) : from_fp16(bits);
}

inline void store(DType dtype, std::byte* base, int64_t index, double x) {
  if (dtype == DType::fp32) {
    const float f = static_cast<float>(x);
    std::memcpy(base + index * 4, &f, 4);
    return;
  }
  const uint16_t bits = dtype == DType::bf16 ? to_bf16(x) : to_fp16(x);
  std::memcpy(base + index * 2, &bits, 2);
}

inline float round_to(DType dtype, double x) {
  const double rounded = dtype == DType::fp32   ? x
                         : dtype == DType::bf16 ? from_bf16(to_bf16(x))
                                                : from_fp16(to_fp16(x));
  return static_cast<float>(rounded);
}

}  // namespace kda::reference
