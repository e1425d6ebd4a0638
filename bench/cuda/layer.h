// The tensors of one layer, for calls that rotate through them.
#pragma once

#include <random>

#include "bench/cuda/harness.h"

namespace bench {

using namespace kda;

inline void must(Status s, const char* what) {
  if (s == KDA_OK) return;
  std::fprintf(stderr, "bench: %s: status %d\n", what, s);
  std::exit(1);
}

inline Execution on(cudaStream_t stream) {
  Execution e;
  e.stream = stream;
  return e;
}

constexpr int kCommitted = 4;  // nodes of a chain that commits accept

// One layer's tensors for `rounds` calls of N rows with T tokens each.
struct Layer {
  Problem p;
  int rounds, nodes;
  int64_t N;
  std::byte *q, *k, *v, *a, *b, *out, *state, *records = nullptr;
  float *A_log, *bias;
  int32_t *slots, *cu, *parents = nullptr, *tips, *record_rows;
  RecordLayout layout;

  Layer(int64_t rows, int H, int D, DType state_dtype, int T, Numerics numerics, bool tree, bool with_records,
        double least_bytes = 300e6, int least_rounds = 8)
      : nodes(T), N(rows) {
    p.max_rows = rows;
    p.max_tokens = rows * T;
    p.max_nodes = std::min(T, kMaxDraftNodes);
    p.heads = p.value_heads = H;
    p.key_dim = p.value_dim = D;
    p.state = state_dtype;
    p.gate = Gate::bounded;
    p.verify_numerics = p.extend_numerics = numerics;
    const int64_t slot = p.slot_elements();
    rounds = static_cast<int>(
        std::clamp(least_bytes / (double(slot) * rows * size_of(state_dtype)), double(least_rounds), 160.0));
    const int64_t tokens = rows * T;
    const auto io = [&](int64_t count, float scale, uint32_t seed) {
      auto* data = device_array<std::byte>(size_t(count) * 2);
      fill_random(data, DType::bf16, size_t(count), scale, seed);
      return data;
    };
    q = io(rounds * tokens * H * D, 1, 1), k = io(rounds * tokens * H * D, 1, 2), v = io(rounds * tokens * H * D, 1, 3);
    a = io(rounds * tokens * H * D, 1, 4), b = io(rounds * tokens * H, 1, 5), out = io(rounds * tokens * H * D, 1, 6);
    state = device_array<std::byte>(size_t(rounds * rows * slot * size_of(state_dtype)));
    fill_random(state, state_dtype, size_t(rounds * rows * slot), 0.1f, 7);
    A_log = device_array<float>(size_t(H));
    bias = device_array<float>(size_t(H) * D);
    fill_random(A_log, DType::fp32, size_t(H), 0.3f, 8);
    fill_random(bias, DType::fp32, size_t(H) * D, 0.5f, 9);
    std::mt19937 random(1);
    std::vector<int32_t> host_slots, host_cu, host_parents, host_rows;
    for (int64_t i = 0; i < rounds * rows; ++i) host_slots.push_back(int32_t(i));
    for (int r = 0; r < rounds; ++r) {
      std::shuffle(host_slots.begin() + r * rows, host_slots.begin() + (r + 1) * rows, random);
    }
    for (int64_t i = 0; i <= rows; ++i) host_cu.push_back(int32_t(i * T));
    for (int64_t i = 0; i < rows * T; ++i) {
      const int t = int(i % T);
      host_parents.push_back(t == 0 ? -1 : tree ? int32_t(random() % unsigned(t)) : t - 1);
    }
    for (int64_t i = 0; i < rows; ++i) host_rows.push_back(int32_t(rows + i));
    slots = upload(host_slots), cu = upload(host_cu), record_rows = upload(host_rows);
    if (tree) parents = upload(host_parents);
    tips = upload(std::vector<int32_t>(size_t(rows), std::min(T, kCommitted) - 1));
    layout = record_layout(p);
    if (with_records) {
      records = device_array<std::byte>(size_t(layout.row_bytes) * 2 * rows * record_sets());
      check(cudaMemset(records, 0, size_t(layout.row_bytes) * 2 * rows * record_sets()), "memset");
    }
  }
  ~Layer() {
    for (void* m :
         {(void*)q, (void*)k, (void*)v, (void*)a, (void*)b, (void*)out, (void*)state, (void*)records, (void*)A_log,
          (void*)bias, (void*)slots, (void*)cu, (void*)parents, (void*)tips, (void*)record_rows}) {
      cudaFree(m);
    }
  }
  int record_sets() const { return std::min(rounds, 8); }

  static int32_t* upload(const std::vector<int32_t>& values) {
    auto* data = device_array<int32_t>(values.size());
    check(cudaMemcpy(data, values.data(), values.size() * 4, cudaMemcpyHostToDevice), "upload");
    return data;
  }
  static IndexView view(const int32_t* data, int64_t count) { return {data, false, count, 1, 1, 1}; }

  TokenInputs tokens(int round) const {
    const int64_t T = N * nodes, H = p.heads, D = p.key_dim, at = round * T * H * D * 2;
    const auto token = [&](std::byte* data) { return TokenView{data + at, DType::bf16, H * D, D}; };
    TokenInputs t;
    t.q = token(q), t.k = token(k), t.v = token(v), t.a = token(a), t.out = token(out);
    t.b = {b + round * T * H * 2, DType::bf16, H, 1};
    t.A_log = {reinterpret_cast<const std::byte*>(A_log), DType::fp32};
    t.dt_bias = {reinterpret_cast<const std::byte*>(bias), DType::fp32};
    t.scale = 1.0f / std::sqrt(float(D));
    t.lower_bound = -5;
    return t;
  }
  Rows rows(int round) const {
    Rows r;
    r.count = N;
    r.tokens = N * nodes;
    r.cu_seqlens = view(cu, N + 1);
    r.slots = view(slots + round * N, N);
    return r;
  }
  StatePool pool() const { return {state, p.state, rounds * N, p.slot_elements(), {}}; }
  RecordBuffer record_buffer(int round) const {
    return {records + (round % record_sets()) * 2 * N * layout.row_bytes, 2 * N, layout.row_bytes, {}};
  }
  double state_bytes() const { return double(N) * double(p.slot_elements()) * double(size_of(p.state)); }
};

}  // namespace bench
