// Random calls at kernel level, for comparing cpu kernels with the float64 reference kernels and with each other.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/record_format.h"
#include "core/thread_pool.h"
#include "cpu/half.h"
#include "cpu/targets.h"
#include "plan/registry.h"

namespace kda::test {

// Typed memory with NaN where nothing was put.
struct Buffer {
  std::vector<std::byte> bytes;
  DType dtype = DType::fp32;
  Buffer() = default;
  Buffer(DType type, int64_t elements) : bytes(elements * size_of(type)), dtype(type) {
    for (int64_t i = 0; i < elements; ++i) set(i, std::numeric_limits<float>::quiet_NaN());
  }
  void set(int64_t i, float value) { store_element(value, bytes.data(), dtype, i); }
  float at(int64_t i) const { return load_element(bytes.data(), dtype, i); }
  std::byte* data() { return bytes.data(); }
};

inline IndexView indices(const std::vector<int64_t>& v) {
  return {.data = v.data(), .wide = true, .count = static_cast<int64_t>(v.size())};
}

struct Random {
  std::mt19937_64 engine;
  explicit Random(uint64_t seed) : engine(seed) {}
  float normal() { return std::normal_distribution<float>()(engine); }
  int64_t in(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine); }
  bool chance(double p) { return std::uniform_real_distribution<double>()(engine) < p; }
};

// A geometry, a pool and the tokens of some rows.
struct Case {
  Problem p;
  Random random;
  std::vector<int64_t> cu, slots, parents;
  std::vector<uint8_t> has_state;
  Buffer q, k, v, a, b, A_log, dt_bias, out, pool;
  int64_t slot_count, slot_stride;

  Case(uint64_t seed, const Problem& problem, std::vector<int64_t> lengths) : p(problem), random(seed) {
    cu = {random.in(0, 2)};
    for (int64_t n : lengths) cu.push_back(cu.back() + n);
    const int64_t rows = static_cast<int64_t>(lengths.size()), T = cu.back();
    p.max_rows = rows;
    p.max_tokens = std::max<int64_t>(T, 1);
    // Without the norm, keys much longer than 1 make the recurrence itself explode.
    const float key_scale = p.qk_l2norm ? 1.0f : 0.7f / std::sqrt(static_cast<float>(p.key_dim));
    fill(q, p.io, T * p.heads * p.key_dim, 1);
    fill(k, p.io, T * p.heads * p.key_dim, key_scale);
    for (int64_t t = cu[0] + 1; t < T; ++t) {  // some keys repeat the one before
      if (!random.chance(0.25)) continue;
      const int64_t n = p.heads * p.key_dim;
      for (int64_t i = 0; i < n; ++i) k.set(t * n + i, k.at((t - 1) * n + i));
    }
    fill(v, p.io, T * p.value_heads * p.value_dim, 1);
    fill(a, p.gate_input, T * p.value_heads * p.key_dim, 3);
    if (p.gate == Gate::precomputed) {
      const float special[] = {0.0f, -1000.0f, -1e-6f, -std::numeric_limits<float>::infinity()};
      for (int64_t i = 0; i < T * p.value_heads * p.key_dim; ++i) {
        a.set(i, random.chance(0.05) ? special[random.in(0, 3)] : -std::abs(a.at(i)) * 0.1f);
      }
    }
    fill(b, p.beta_input, T * p.value_heads, 2);
    if (p.beta == Beta::none) {
      for (int64_t i = 0; i < T * p.value_heads; ++i) b.set(i, std::fmod(std::abs(b.at(i)), 1.0f));
    }
    fill(A_log, DType::fp32, p.value_heads, 0.5f);
    fill(dt_bias, DType::bf16, p.value_heads * p.key_dim, 1);
    out = Buffer(p.io, T * p.value_heads * p.value_dim);
    slot_count = rows + 3;
    slot_stride = p.slot_elements() + 8;
    pool = Buffer(p.state, slot_count * slot_stride);
    for (int64_t r = 0; r < rows; ++r) {
      slots.push_back(random.chance(0.1) ? -1 : r + 1);
      has_state.push_back(!random.chance(0.2));
      for (int64_t i = 0; has_state.back() && i < p.slot_elements(); ++i) {
        pool.set((r + 1) * slot_stride + i, 0.3f * random.normal());
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < lengths[r]; ++i) parents.push_back(random.chance(0.5) ? i - 1 : random.in(-1, i - 1));
    }
    parents.insert(parents.begin(), cu[0], 0);
  }

  void fill(Buffer& buffer, DType dtype, int64_t elements, float scale) {
    buffer = Buffer(dtype, elements);
    for (int64_t i = 0; i < elements; ++i) buffer.set(i, scale * random.normal());
  }

  int64_t rows() const { return static_cast<int64_t>(slots.size()); }
  Rows row_views() const {
    return {.count = rows(),
            .tokens = cu.back(),
            .cu_seqlens = indices(cu),
            .slots = indices(slots),
            .has_state = {.data = has_state.data()}};
  }
  StatePool pool_view(Buffer& buffer) const {
    return {.base = buffer.data(), .dtype = buffer.dtype, .slots = slot_count, .slot_stride = slot_stride};
  }
  TokenInputs inputs(Buffer& output) {
    const auto view = [](Buffer& x, int64_t heads, int64_t width) {
      return TokenView{.data = x.data(), .dtype = x.dtype, .token_stride = heads * width, .head_stride = width};
    };
    TokenInputs t{.q = view(q, p.heads, p.key_dim),
                  .k = view(k, p.heads, p.key_dim),
                  .v = view(v, p.value_heads, p.value_dim),
                  .a = view(a, p.value_heads, p.key_dim),
                  .b = view(b, p.value_heads, 1),
                  .out = view(output, p.value_heads, p.value_dim)};
    t.scale = 1.0f / std::sqrt(static_cast<float>(p.key_dim));
    t.lower_bound = -5.0f;
    t.A_log = {.data = A_log.data(), .dtype = A_log.dtype};
    t.dt_bias = {.data = dt_bias.data(), .dtype = dt_bias.dtype};
    return t;
  }
};

// Memory and threads of one call; the workspace holds NaN.
struct CallMemory {
  std::vector<float> workspace;
  ThreadPool threads;
  Execution execution;
  CallMemory(const Problem& p, WorkspaceFunction bytes, int target = 0, int thread_count = 1) : threads(thread_count) {
    workspace.assign(bytes(p) / 4 + 32, std::numeric_limits<float>::quiet_NaN());
    const auto address = reinterpret_cast<uintptr_t>(workspace.data());
    execution.workspace = reinterpret_cast<std::byte*>((address + 63) / 64 * 64);
    execution.threads = &threads;
    execution.cpu_target = target;
  }
};

// |x - y| / |y| over all elements that hold a number in y; infinite if one is NaN where the other is not.
inline double relative_error(const Buffer& x, const Buffer& y) {
  double difference = 0, norm = 0;
  const int64_t n = static_cast<int64_t>(y.bytes.size()) / size_of(y.dtype);
  for (int64_t i = 0; i < n; ++i) {
    const double e = x.at(i), r = y.at(i);
    if (std::isnan(e) != std::isnan(r)) return std::numeric_limits<double>::infinity();
    if (std::isnan(r)) continue;
    difference += (e - r) * (e - r);
    norm += r * r;
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

inline std::vector<int> available_targets() {
  std::vector<int> targets;
  for (int t = 0; t < cpu_target_count(); ++t) {
    if (cpu_target_available(t)) targets.push_back(t);
  }
  return targets;
}

}  // namespace kda::test
