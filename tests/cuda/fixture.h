// Calls of the CUDA backend through the C ABI, with every tensor in device memory.
#pragma once

#include <memory>

#include "cuda/device_tensor.h"

namespace cuda_test {

// A call's tensors for N rows of T tokens over a pool of `slots`, bf16 io.
struct Calls {
  int64_t N, T, H, D, slots;
  int max_nodes;
  kda_context* context = nullptr;
  kda_plan* plan = nullptr;
  kda_plan_info info{};
  DeviceTensor<uint16_t> q, k, v, a, b, out;
  DeviceTensor<float> A_log, dt_bias, state;
  DeviceTensor<int32_t> slot_list, cu, parents, tips, record_rows, pending_rows;
  DeviceTensor<uint32_t> status;
  std::unique_ptr<DeviceTensor<uint8_t>> workspace;
  std::unique_ptr<DeviceTensor<uint8_t>> records;

  Calls(int64_t N, int64_t T, int64_t H, int64_t D, int64_t slots, int32_t numerics = KDA_EXACT,
        bool check_values = false)
      : N(N),
        T(T),
        H(H),
        D(D),
        slots(slots),
        max_nodes(int(std::min<int64_t>(T, 64))),
        q({N * T, H, D}, random_bf16(size_t(N * T * H * D), 1, 1)),
        k({N * T, H, D}, random_bf16(size_t(N * T * H * D), 1, 2)),
        v({N * T, H, D}, random_bf16(size_t(N * T * H * D), 1, 3)),
        a({N * T, H, D}, random_bf16(size_t(N * T * H * D), 2, 4)),
        b({N * T, H}, random_bf16(size_t(N * T * H), 2, 5)),
        out({N * T, H, D}),
        A_log({H}, random_fp32(size_t(H), 0.5f, 6)),
        dt_bias({H * D}, random_fp32(size_t(H * D), 1, 7)),
        state({slots, H, D, D}, random_fp32(size_t(slots * H * D * D), 0.3f, 8)),
        slot_list({N}),
        cu({N + 1}),
        parents({N * T}),
        tips({N}),
        record_rows({N}),
        pending_rows({N}),
        status({1}, {0u}) {
    std::vector<int32_t> list, cuts, chain, ones, first, second;
    for (int64_t n = 0; n < N; ++n) list.push_back(int32_t(slots - 1 - n));
    for (int64_t n = 0; n <= N; ++n) cuts.push_back(int32_t(n * T));
    for (int64_t n = 0; n < N * T; ++n) chain.push_back(int32_t(n % T) - 1);
    for (int64_t n = 0; n < N; ++n) first.push_back(int32_t(n)), second.push_back(int32_t(N + n)), ones.push_back(0);
    slot_list.set(list), cu.set(cuts), parents.set(chain), tips.set(ones), record_rows.set(first);
    pending_rows.set(second);
    EXPECT_EQ(kda_context_create(nullptr, &context, nullptr), KDA_OK);
    kda_problem p{};
    p.struct_size = sizeof(p);
    p.backend = KDA_BACKEND_CUDA;
    p.operations = KDA_ALL_STATE_OPERATIONS;
    p.max_rows = N;
    p.max_tokens = N * T;
    p.max_nodes = max_nodes;
    p.max_snapshots = 4;
    p.heads = int32_t(H);
    p.key_dim = int32_t(D);
    p.verify_numerics = numerics;
    p.check_values = check_values;
    kda_error error{};
    error.struct_size = sizeof(error);
    EXPECT_EQ(kda_plan_create(context, &p, &plan, &error), KDA_OK) << error.message;
    info.struct_size = sizeof(info);
    EXPECT_EQ(kda_plan_get_info(plan, &info), KDA_OK);
    workspace = std::make_unique<DeviceTensor<uint8_t>>(std::vector<int64_t>{int64_t(info.workspace_bytes)});
    records = std::make_unique<DeviceTensor<uint8_t>>(std::vector<int64_t>{2 * N, int64_t(info.record_row_bytes)});
  }
  ~Calls() {
    kda_plan_destroy(plan);
    kda_context_destroy(context);
  }

  kda_tokens tokens() const {
    kda_tokens t{};
    t.q = q.dl(), t.k = k.dl(), t.v = v.dl(), t.a = a.dl(), t.b = b.dl(), t.out = out.dl();
    t.A_log = A_log.dl(), t.dt_bias = dt_bias.dl();
    return t;
  }
  kda_rows rows() const {
    kda_rows r{};
    r.cu_seqlens = cu.dl(), r.slots = slot_list.dl(), r.state = state.dl();
    return r;
  }
  kda_call call(cudaStream_t stream = nullptr) const {
    kda_call c{};
    c.struct_size = sizeof(c);
    c.stream = stream;
    c.device_status = status.data();
    c.workspace = workspace->data();
    c.workspace_bytes = workspace->count();
    return c;
  }
  kda_status extend(cudaStream_t stream = nullptr, const kda_snapshots& snapshots = {}) const {
    kda_extend_args args{};
    args.struct_size = sizeof(args);
    args.tokens = tokens(), args.rows = rows(), args.snapshots = snapshots;
    const kda_call c = call(stream);
    return kda_extend(plan, &args, &c, nullptr);
  }
  kda_status decode(cudaStream_t stream = nullptr) const {
    kda_decode_args args{};
    args.struct_size = sizeof(args);
    args.tokens = tokens(), args.rows = rows();
    const kda_call c = call(stream);
    return kda_decode(plan, &args, &c, nullptr);
  }
  kda_status verify(bool pending, cudaStream_t stream = nullptr) const {
    kda_verify_args args{};
    args.struct_size = sizeof(args);
    args.tokens = tokens(), args.rows = rows();
    args.parents = parents.dl(), args.records = records->dl(), args.record_rows = record_rows.dl();
    if (pending) args.pending_tips = tips.dl(), args.pending_record_rows = pending_rows.dl();
    const kda_call c = call(stream);
    return kda_verify(plan, &args, &c, nullptr);
  }
  kda_status commit(const DeviceTensor<int32_t>& from, cudaStream_t stream = nullptr) const {
    kda_commit_args args{};
    args.struct_size = sizeof(args);
    args.rows = rows();
    args.rows.cu_seqlens = nullptr;
    args.tips = tips.dl(), args.records = records->dl(), args.record_rows = from.dl();
    const kda_call c = call(stream);
    return kda_commit(plan, &args, &c, nullptr);
  }
  uint32_t take_status() {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const uint32_t bits = status.get()[0];
    status.set({0u});
    return bits;
  }
  bool row_is_zero(int64_t n) const {
    const std::vector<uint16_t> o = out.get();
    for (int64_t i = n * T * H * D; i < (n + 1) * T * H * D; ++i) {
      if (o[size_t(i)] != 0) return false;
    }
    return true;
  }
  bool row_is_untouched(int64_t n) const {
    const std::vector<uint16_t> o = out.get();
    for (int64_t i = n * T * H * D; i < (n + 1) * T * H * D; ++i) {
      if (o[size_t(i)] != 0xffff) return false;
    }
    return true;
  }
};

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU";
  }
};

template <class T>
void change(DeviceTensor<T>& tensor, size_t i, T value) {
  std::vector<T> values = tensor.get();
  values[i] = value;
  tensor.set(values);
}

}  // namespace cuda_test
