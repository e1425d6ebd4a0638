// The answer of a call is compared with the float64 reference before the call is timed: one row and head of round 0.
#pragma once

#include <cstring>

#include "bench/cuda/layer.h"
#include "reference/kernels.h"

namespace bench {

// One head of one row, copied to the host as it is before a call, and what the reference makes of it.
class HeadOnHost {
 public:
  // Tokens first .. first + count of the call belong to row n.
  HeadOnHost(const Layer& l, int64_t n, int head, int64_t first, int count)
      : layer_(l), count_(count), H_(l.p.heads), D_(l.p.key_dim), p_(l.p) {
    p_.heads = p_.value_heads = 1;
    p_.max_rows = 1;
    p_.max_tokens = count;
    p_.extend_numerics = p_.verify_numerics = Numerics::exact;
    const int64_t at = (first * H_ + head) * D_ * 2;
    q_ = fetch(l.q + at), k_ = fetch(l.k + at), v_ = fetch(l.v + at), a_ = fetch(l.a + at);
    b_.resize(size_t(count) * 2);
    check(cudaMemcpy2D(b_.data(), 2, l.b + (first * H_ + head) * 2, size_t(H_) * 2, 2, size_t(count),
                       cudaMemcpyDeviceToHost),
          "fetch beta");
    bias_.resize(size_t(D_));
    check(cudaMemcpy(&A_log_, l.A_log + head, 4, cudaMemcpyDeviceToHost), "fetch A_log");
    check(cudaMemcpy(bias_.data(), l.bias + head * D_, size_t(D_) * 4, cudaMemcpyDeviceToHost), "fetch dt_bias");
    device_out_ = l.out + at;
    int32_t slot = 0;
    check(cudaMemcpy(&slot, l.slots + n, 4, cudaMemcpyDeviceToHost), "fetch slot");
    const int64_t bytes = D_ * D_ * size_of(l.p.state);
    device_state_ = l.state + (slot * int64_t{H_} + head) * bytes;
    state_.resize(size_t(bytes));
    check(cudaMemcpy(state_.data(), device_state_, size_t(bytes), cudaMemcpyDeviceToHost), "fetch state");
    out_.resize(size_t(count) * size_t(D_) * 2);
  }

  // The first `tokens` of the row: outputs and state.
  void extend(int tokens) {
    workspace_.resize(size_t(reference_state_workspace(p_)));
    must(reference_extend(p_, {inputs(), rows(tokens), pool(), pool(), {}}, execution()), "reference extend");
  }
  // All tokens as a draft; parents: of the row, on the device, or null for a chain.
  void verify(const int32_t* parents) {
    VerifyLaunch v;
    v.tokens = inputs();
    v.rows = rows(count_);
    v.state = v.dst = pool();
    std::vector<int32_t> host_parents(static_cast<size_t>(count_));
    if (parents != nullptr) {
      check(cudaMemcpy(host_parents.data(), parents, host_parents.size() * 4, cudaMemcpyDeviceToHost), "fetch parents");
      v.draft.parents = Layer::view(host_parents.data(), count_);
    }
    workspace_.resize(size_t(reference_verify_workspace(p_)));
    must(reference_verify(p_, v, execution()), "reference verify");
  }

  void compare_outputs() const {
    std::vector<std::byte> found = fetch(device_out_);
    compare("outputs", found, out_, DType::bf16);
  }
  void compare_state() const {
    std::vector<std::byte> found(state_.size());
    check(cudaMemcpy(found.data(), device_state_, found.size(), cudaMemcpyDeviceToHost), "fetch state");
    compare("state", found, state_, layer_.p.state);
  }

 private:
  static constexpr double kLimit = 8e-3;  // of fast numerics with bf16 tokens and pools

  std::vector<std::byte> fetch(const std::byte* device) const {
    std::vector<std::byte> data(size_t(count_) * size_t(D_) * 2);
    check(cudaMemcpy2D(data.data(), size_t(D_) * 2, device, size_t(H_) * size_t(D_) * 2, size_t(D_) * 2, size_t(count_),
                       cudaMemcpyDeviceToHost),
          "fetch tokens");
    return data;
  }
  static double number(const std::byte* data, DType dtype, size_t i) {
    uint32_t bits = 0;
    if (dtype == DType::fp32) {
      std::memcpy(&bits, data + 4 * i, 4);
    } else {
      uint16_t half;
      std::memcpy(&half, data + 2 * i, 2);
      bits = uint32_t{half} << 16;
    }
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
  }
  // |found - expected| / |expected|, with the sign of one found number turned if `planted`.
  static double distance(const std::vector<std::byte>& found, const std::vector<std::byte>& expected, DType dtype,
                         bool planted) {
    double difference = 0, square = 0;
    const size_t count = expected.size() / size_t(size_of(dtype));
    size_t largest = 0;
    for (size_t i = 0; i < count; ++i) {
      if (std::abs(number(expected.data(), dtype, i)) > std::abs(number(expected.data(), dtype, largest))) largest = i;
    }
    for (size_t i = 0; i < count; ++i) {
      const double x = number(found.data(), dtype, i), y = number(expected.data(), dtype, i);
      const double d = (planted && i == largest ? -x : x) - y;
      difference += d * d, square += y * y;
    }
    return std::sqrt(difference / square);
  }
  static void compare(const char* what, const std::vector<std::byte>& found, const std::vector<std::byte>& expected,
                      DType dtype) {
    const double error = distance(found, expected, dtype, false);
    if (!(error <= kLimit)) {
      std::fprintf(stderr, "bench: %s differ from the reference by %.1e, limit %.1e: not timed\n", what, error, kLimit);
      std::exit(1);
    }
    if (distance(found, expected, dtype, true) <= kLimit) {
      std::fprintf(stderr, "bench: the comparison of %s does not see a wrong number\n", what);
      std::exit(1);
    }
  }

  TokenInputs inputs() {
    const auto token = [&](std::vector<std::byte>& data) { return TokenView{data.data(), DType::bf16, D_, D_}; };
    TokenInputs t = layer_.tokens(0);
    t.q = token(q_), t.k = token(k_), t.v = token(v_), t.a = token(a_), t.out = token(out_);
    t.b = {b_.data(), DType::bf16, 1, 1};
    t.A_log = {reinterpret_cast<const std::byte*>(&A_log_), DType::fp32};
    t.dt_bias = {reinterpret_cast<const std::byte*>(bias_.data()), DType::fp32};
    return t;
  }
  Rows rows(int tokens) {
    cu_[1] = tokens;
    Rows r;
    r.count = 1;
    r.tokens = count_;
    r.cu_seqlens = Layer::view(cu_, 2);
    r.slots = Layer::view(&slot_, 1);
    return r;
  }
  StatePool pool() { return {state_.data(), layer_.p.state, 1, int64_t{D_} * D_, {}}; }
  Execution execution() {
    Execution e;
    e.workspace = workspace_.data();
    return e;
  }

  const Layer& layer_;
  int count_, H_, D_;
  Problem p_;
  std::vector<std::byte> q_, k_, v_, a_, b_, out_, state_, workspace_;
  std::vector<float> bias_;
  float A_log_ = 0;
  int32_t cu_[2] = {0, 0}, slot_ = 0;
  const std::byte* device_out_ = nullptr;
  const std::byte* device_state_ = nullptr;
};

}  // namespace bench
