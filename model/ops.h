// The small vector operations of a decoder on fp32 rows. Each row is computed by itself in one fixed order, so its bits
// depend on that row alone. Single-threaded: callers spread rows over threads.
#pragma once

#include <cstdint>

namespace kda::model {

// out = x * weight / sqrt(mean(x^2) + eps); out may be x. weight [size] fp32.
void rms_norm(const float* x, const float* weight, int64_t size, float eps, float* out);

// out = x * weight / sqrt(mean(x^2) + eps) * sigmoid(gate); out may be x.
void gated_rms_norm(const float* x, const float* weight, const float* gate, int64_t size, float eps, float* out);

// out = silu(gate) * up; out may be gate or up.
void silu_mul(const float* gate, const float* up, int64_t size, float* out);

// x = sigmoid(x)
void sigmoid(float* x, int64_t size);

// out += scale * x
void add_scaled(const float* x, float scale, int64_t size, float* out);

// x = softmax(scale * x) over size entries, size >= 1.
void softmax(float* x, float scale, int64_t size);

// Index of the largest entry, the first of equals; NaN never wins. -1 if size is 0.
int64_t argmax(const float* x, int64_t size);

}  // namespace kda::model
