// How device code reads the launch structs of core/: indices, flags, and elements whose dtype is known at run time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/launch.h"

namespace kda::cuda {

__device__ inline int64_t index_at(const IndexView& v, int64_t row, int64_t column = 0) {
  const int64_t i = row * v.stride + column * v.column_stride;
  return v.wide ? static_cast<const int64_t*>(v.data)[i] : static_cast<const int32_t*>(v.data)[i];
}

__device__ inline bool present(const IndexView& v) { return v.data != nullptr; }

__device__ inline bool flag_at(const FlagView& v, int64_t i) { return v.data == nullptr || v.data[i * v.stride] != 0; }

template <class Pool>
__device__ inline std::byte* layer_base(const Pool& pool, int layer) {
  return pool.layers.table ? reinterpret_cast<std::byte*>(pool.layers.table[layer])
                           : pool.base + layer * pool.layers.stride;
}

__device__ inline float load_element(const std::byte* base, DType dtype, int64_t i) {
  if (dtype == DType::fp32) return reinterpret_cast<const float*>(base)[i];
  if (dtype == DType::bf16) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(base)[i]);
  return __half2float(reinterpret_cast<const __half*>(base)[i]);
}

__device__ inline void store_element(std::byte* base, DType dtype, int64_t i, float x) {
  if (dtype == DType::fp32) {
    reinterpret_cast<float*>(base)[i] = x;
  } else if (dtype == DType::bf16) {
    reinterpret_cast<__nv_bfloat16*>(base)[i] = __float2bfloat16_rn(x);
  } else {
    reinterpret_cast<__half*>(base)[i] = __float2half_rn(x);
  }
}

__device__ inline float2 unpack(uint32_t pair, DType dtype) {
  if (dtype == DType::bf16) return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

// The 16-bit pair (lo, hi), rounded to nearest even.
__device__ inline uint32_t pack(float lo, float hi, DType dtype) {
  if (dtype == DType::bf16) {
    const __nv_bfloat162 x = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<const uint32_t*>(&x);
  }
  const __half2 x = __floats2half2_rn(lo, hi);
  return *reinterpret_cast<const uint32_t*>(&x);
}

__device__ inline float round_to_bf16(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

// Four consecutive elements as they lie in memory. Kept apart from their conversion, so that many loads can be in
// flight before the first value is needed.
struct Raw4 {
  uint32_t bits[4];  // fp32: one element each; 16-bit: two elements each in bits[0] and bits[1]
};

__device__ inline uint32_t load_bits16(const std::byte* p) { return *reinterpret_cast<const uint16_t*>(p); }
__device__ inline uint32_t load_bits32(const std::byte* p) { return *reinterpret_cast<const uint32_t*>(p); }

// One access where the address allows it (always, if Aligned), else one by one.
template <bool Aligned = false>
__device__ inline Raw4 load4_raw(const std::byte* base, DType dtype, int64_t i) {
  Raw4 raw;
  if (dtype == DType::fp32) {
    const std::byte* p = base + i * 4;
    if (Aligned || (reinterpret_cast<uintptr_t>(p) & 15) == 0) {
      const uint4 x = *reinterpret_cast<const uint4*>(p);
      raw.bits[0] = x.x, raw.bits[1] = x.y, raw.bits[2] = x.z, raw.bits[3] = x.w;
    } else {
#pragma unroll
      for (int n = 0; n < 4; ++n) raw.bits[n] = load_bits32(p + 4 * n);
    }
  } else {
    const std::byte* p = base + i * 2;
    raw.bits[2] = raw.bits[3] = 0;
    if (Aligned || (reinterpret_cast<uintptr_t>(p) & 7) == 0) {
      const uint2 x = *reinterpret_cast<const uint2*>(p);
      raw.bits[0] = x.x, raw.bits[1] = x.y;
    } else {
      raw.bits[0] = load_bits16(p) | load_bits16(p + 2) << 16;
      raw.bits[1] = load_bits16(p + 4) | load_bits16(p + 6) << 16;
    }
  }
  return raw;
}

__device__ inline float4 to_float4(const Raw4& raw, DType dtype) {
  if (dtype == DType::fp32) {
    return {__uint_as_float(raw.bits[0]), __uint_as_float(raw.bits[1]), __uint_as_float(raw.bits[2]),
            __uint_as_float(raw.bits[3])};
  }
  const float2 a = unpack(raw.bits[0], dtype), b = unpack(raw.bits[1], dtype);
  return {a.x, a.y, b.x, b.y};
}

template <bool Aligned = false>
__device__ inline float4 load4(const std::byte* base, DType dtype, int64_t i) {
  return to_float4(load4_raw<Aligned>(base, dtype, i), dtype);
}

__device__ inline uint32_t load_element_raw(const std::byte* base, DType dtype, int64_t i) {
  return dtype == DType::fp32 ? load_bits32(base + i * 4) : load_bits16(base + i * 2);
}
__device__ inline float to_float(uint32_t raw, DType dtype) {
  return dtype == DType::fp32 ? __uint_as_float(raw) : unpack(raw, dtype).x;
}

template <bool Aligned = false>
__device__ inline void store4(std::byte* base, DType dtype, int64_t i, float4 x) {
  const int64_t bytes = dtype == DType::fp32 ? 4 : 2;
  std::byte* p = base + i * bytes;
  if (dtype == DType::fp32) {
    if (Aligned || (reinterpret_cast<uintptr_t>(p) & 15) == 0) {
      *reinterpret_cast<float4*>(p) = x;
      return;
    }
  } else if (Aligned || (reinterpret_cast<uintptr_t>(p) & 7) == 0) {
    *reinterpret_cast<uint2*>(p) = {pack(x.x, x.y, dtype), pack(x.z, x.w, dtype)};
    return;
  }
  store_element(base, dtype, i, x.x);
  store_element(base, dtype, i + 1, x.y);
  store_element(base, dtype, i + 2, x.z);
  store_element(base, dtype, i + 3, x.w);
}

// How a kernel reads the tokens' tensors. AnyIo: dtypes and alignment known at run time, head sizes padded.
struct AnyIo {
  static constexpr bool kFixed = false;
  __device__ static constexpr DType token(DType given) { return given; }
  __device__ static constexpr DType parameter(DType given) { return given; }
};
// Every token tensor of dtype D with 8-byte aligned rows (16-byte for fp32), fp32 parameters, K as compiled, V a
// multiple of the block's rows.
template <DType D>
struct FixedIo {
  static constexpr bool kFixed = true;
  __device__ static constexpr DType token(DType) { return D; }
  __device__ static constexpr DType parameter(DType) { return DType::fp32; }
};

// A launch may begin while the kernel before it in the stream still runs: nothing in global memory is touched before
// this. The kernel after it may be launched from here on; it waits in its turn.
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" :::);
#endif
}

// A value that stays in its register: reading it again from where it came (a special register, the constant bank) would
// cost a wait in inner loops.
__device__ inline int pinned(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

__device__ inline void raise_status(uint32_t* status, uint32_t bits) {
  if (status != nullptr && bits != 0) atomicOr(status, bits);
}

}  // namespace kda::cuda
