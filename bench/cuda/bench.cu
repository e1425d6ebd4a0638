// Times the CUDA kernels and copy kernels that move the same bytes, each after one row and head of a call was compared
// with the float64 reference. One JSON object a line on stdout. usage: kda_cuda_bench
// [copy|decode|verify|commit|extend]...   (default: all)
#include <cuda_bf16.h>

#include "bench/cuda/check.h"
#include "cuda/device/decode.cuh"
#include "cuda/host.h"
#include "cuda/kernels.h"
#include "cuda/load.h"
#include "cuda/sequence_launch.h"
#include "cuda/verify_args.h"

using namespace kda;

namespace bench {

__global__ void fill_kernel(void* data, DType dtype, size_t count, float scale, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x) {
    float sum = 0;
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed;
    for (int j = 0; j < 4; ++j) {
      x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
      sum += static_cast<float>(x) * 2.3283064e-10f - 0.5f;
    }
    const float value = sum * 1.732f * scale;
    if (dtype == DType::fp32) {
      static_cast<float*>(data)[i] = value;
    } else {
      static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16(value);
    }
  }
}

void fill_random(void* data, DType dtype, size_t count, float scale, uint32_t seed) {
  fill_kernel<<<2048, 256>>>(data, dtype, count, scale, seed);
  check(cudaGetLastError(), "fill");
}

namespace {

constexpr int kReplays = 20;

// One block copies Units*Threads 16-byte pieces, all loads before the first store.
template <int Threads, int Units>
__global__ void __launch_bounds__(Threads) copy_block_kernel(const float4* in, float4* out, size_t count) {
  const size_t base = blockIdx.x * size_t{Threads} * Units + threadIdx.x;
  float4 x[Units];
#pragma unroll
  for (int i = 0; i < Units; ++i) {
    if (base + i * Threads < count) x[i] = __ldcs(in + base + i * Threads);
  }
#pragma unroll
  for (int i = 0; i < Units; ++i) {
    if (base + i * Threads < count) __stcs(out + base + i * Threads, x[i]);
  }
}

template <int Threads, int Units>
Timing time_copy(float4* pool, size_t count, int rounds, bool in_place) {
  return time_rounds(rounds, kReplays, [&](int r, cudaStream_t s) {
    float4* in = pool + count * r;
    float4* out = in_place ? in : pool + count * ((r + rounds / 2) % rounds);
    const size_t blocks = (count + size_t{Threads} * Units - 1) / (size_t{Threads} * Units);
    copy_block_kernel<Threads, Units><<<static_cast<unsigned>(blocks), Threads, 0, s>>>(in, out, count);
  });
}

int rounds_for(double set_bytes) { return static_cast<int>(std::clamp(300e6 / set_bytes, 8.0, 160.0)); }

// bytes: read once and written once.
void bench_copy(const std::string& name, double bytes) {
  const size_t count = static_cast<size_t>(bytes / 16);
  const int rounds = rounds_for(bytes);
  float4* pool = device_array<float4>(count * rounds);
  fill_random(pool, DType::fp32, count * rounds * 4, 1, 1);
  for (const bool in_place : {true, false}) {
    const std::string suffix = in_place ? " in place" : " apart";
    report(name + " 128x8" + suffix, time_copy<128, 8>(pool, count, rounds, in_place), 2 * bytes);
    report(name + " 128x16" + suffix, time_copy<128, 16>(pool, count, rounds, in_place), 2 * bytes);
    report(name + " 256x4" + suffix, time_copy<256, 4>(pool, count, rounds, in_place), 2 * bytes);
    report(name + " 256x8" + suffix, time_copy<256, 8>(pool, count, rounds, in_place), 2 * bytes);
    report(name + " 512x2" + suffix, time_copy<512, 2>(pool, count, rounds, in_place), 2 * bytes);
  }
  check(cudaFree(pool), "free");
}

std::string label(const char* op, DType state, int H, int64_t N, int D, const std::string& more = "") {
  return std::string(op) + " " + name_of(state) + " H=" + std::to_string(H) + " N=" + std::to_string(N) +
         " D=" + std::to_string(D) + more;
}

void bench_decode(int64_t N, int H, int D, DType state) {
  const Layer l(N, H, D, state, 1, Numerics::exact, false, false);
  const auto launch = [&](int round, cudaStream_t s) {
    Rows rows = l.rows(round);
    rows.cu_seqlens = {};
    must(cuda_decode(l.p, {l.tokens(round), rows, l.pool(), l.pool()}, on(s)), "decode");
  };
  HeadOnHost judge(l, N / 2, H - 1, N / 2, 1);
  launch(0, nullptr);
  judge.extend(1);
  judge.compare_outputs();
  judge.compare_state();
  const Timing t = time_rounds(l.rounds, kReplays, launch);
  report(label("decode", state, H, N, D), t, 2 * l.state_bytes() + double(N) * H * (10 * D + 2));
}

template <int R>
using Fp32 = cuda::StateTile<float, StateLayout::vk, 128, R, false>;
template <int R>
using Bf16 = cuda::RoundedTile<StateLayout::vk, 128, R, false>;

// The decode kernel with other tilings than the launcher's choice: warps a block, blocks a multiprocessor that
// registers allow, and how many of them shared memory lets in (0: all).
template <class Tile, int W, int Blocks>
void bench_decode_tiles(int64_t N, int H, DType state, int resident = 0) {
  const Layer l(N, H, 128, state, 1, Numerics::exact, false, false);
  const Timing t = time_rounds(l.rounds, kReplays, [&](int round, cudaStream_t s) {
    cuda::DecodeArgs args{};
    args.tokens = l.tokens(round);
    args.rows = l.rows(round);
    args.rows.cu_seqlens = {};
    args.state = args.dst = l.pool();
    args.form = cuda::make_form(l.p, false, false);
    constexpr int kBlockRows = W * Tile::kRows;
    const int64_t splits = (128 + kBlockRows - 1) / kBlockRows;
    args.grid = {cuda::Divisor(splits), cuda::Divisor(H)};
    must(cuda::launch<cuda::decode_kernel<Tile, W, Blocks, cuda::FixedIo<DType::bf16>>, true>(
             N * H * splits, 1, W * cuda::kWarp,
             resident ? 227 * 1024 / resident - 1024 - 4 * Tile::Vectors::kFloats : 0, on(s), args),
         "decode");
  });
  report(label("decode", state, H, N, 128,
               " R=" + std::to_string(Tile::R) + " W=" + std::to_string(W) + " blocks=" + std::to_string(Blocks) +
                   " resident=" + std::to_string(resident)),
         t, 2 * l.state_bytes() + double(N) * H * (10 * 128 + 2));
}

void bench_verify(int64_t N, int H, int D, DType state, int T, Numerics numerics, bool tree, bool pending) {
  const Layer l(N, H, D, state, T, numerics, tree, true);
  const auto launch = [&](int round, cudaStream_t s, bool with_pending) {
    VerifyLaunch v;
    v.tokens = l.tokens(round);
    v.rows = l.rows(round);
    v.state = v.dst = l.pool();
    if (tree) v.draft.parents = Layer::view(l.parents, N * T);
    v.records = l.record_buffer(round);
    if (with_pending) {
      v.pending.tips = Layer::view(l.tips, N);
      v.pending.record_rows = Layer::view(l.record_rows, N);
      must((numerics == Numerics::fast ? cuda_verify_pending_wy : cuda_verify_pending)(l.p, v, on(s)),
           "verify_pending");
    } else {
      if (pending) v.record_rows = Layer::view(l.record_rows, N);  // fills the rows that pending reads
      must((numerics == Numerics::fast ? cuda_verify_wy : cuda_verify)(l.p, v, on(s)), "verify");
    }
  };
  if (pending) {
    for (int r = 0; r < l.record_sets(); ++r) launch(r, nullptr, false);
  }
  HeadOnHost judge(l, N / 2, H - 1, N / 2 * T, T);
  launch(0, nullptr, pending);
  if (pending) judge.extend(kCommitted);
  judge.verify(tree ? l.parents + N / 2 * T : nullptr);
  judge.compare_outputs();
  if (pending) judge.compare_state();
  const Timing t = time_rounds(l.rounds, kReplays, [&](int r, cudaStream_t s) { launch(r, s, pending); });
  const double bytes = l.state_bytes() * (pending ? 2 : 1) + double(N) * H * T * (10 * D + 2) +
                       double(N) * double(l.layout.node_bytes) * (T + (pending ? 4 : 0));
  report(label(pending ? "verify_pending" : "verify", state, H, N, D,
               std::string(" T=") + std::to_string(T) + (tree ? " tree" : " chain") +
                   (numerics == Numerics::fast ? " fast" : " exact")),
         t, bytes);
}

// The exact verify kernel with other tilings than the launcher's choice.
template <class Tile, int W, int Blocks>
void bench_verify_tiles(int T_nodes, DType state) {
  const int64_t N = 32;
  const Layer l(N, 32, 128, state, T_nodes, Numerics::exact, false, true);
  const Timing t = time_rounds(l.rounds, kReplays, [&](int round, cudaStream_t s) {
    VerifyLaunch v;
    v.tokens = l.tokens(round);
    v.rows = l.rows(round);
    v.state = v.dst = l.pool();
    v.records = l.record_buffer(round);
    cuda::SequenceArgs args = cuda::verify_args(l.p, v, on(s));
    must((cuda::launch_sequence_as<Tile, W, Blocks, cuda::FixedIo<DType::bf16>>(l.p, args, on(s))), "verify");
  });
  report(label("verify", state, 32, N, 128,
               " T=" + std::to_string(T_nodes) + " chain exact R=" + std::to_string(Tile::R) +
                   " W=" + std::to_string(W) + " blocks=" + std::to_string(Blocks)),
         t, l.state_bytes());
}

void bench_commit(int64_t N, int H, int D, DType state, Numerics numerics) {
  const int T = 8;
  const Layer l(N, H, D, state, T, numerics, false, true);
  for (int r = 0; r < l.record_sets(); ++r) {
    VerifyLaunch v;
    v.tokens = l.tokens(r);
    v.rows = l.rows(r);
    v.state = v.dst = l.pool();
    v.records = l.record_buffer(r);
    must(cuda_verify(l.p, v, on(nullptr)), "verify");
  }
  const auto launch = [&](int round, cudaStream_t s) {
    CommitLaunch c;
    c.rows = l.rows(round);
    c.tips = Layer::view(l.tips, N);
    c.state = c.dst = l.pool();
    c.records = l.record_buffer(round);
    must(cuda_commit(l.p, c, on(s)), "commit");
  };
  HeadOnHost judge(l, N / 2, H - 1, N / 2 * T, T);
  launch(0, nullptr);
  judge.extend(kCommitted);
  judge.compare_state();
  const Timing t = time_rounds(l.rounds, kReplays, launch);
  report(label("commit", state, H, N, D, numerics == Numerics::fast ? " depth=4 fast" : " depth=4 exact"), t,
         2 * l.state_bytes() + 4.0 * double(N) * double(l.layout.node_bytes));
}

// Rows of tokens for extend, by name (peers.py has the same).
struct ExtendRows {
  const char* name;
  std::vector<int> lengths;
};
const std::vector<ExtendRows>& extend_rows() {
  static const std::vector<ExtendRows> rows = {{"1x8192", {8192}},
                                               {"mixed6", {1300, 547, 2048, 963, 271, 3063}},
                                               {"8x1024", std::vector<int>(8, 1024)},
                                               {"64x256", std::vector<int>(64, 256)},
                                               {"1x65536", {65536}}};
  return rows;
}

// In the default workspace or a large one; `recurrence`: the kernel of exact numerics.
void bench_extend(const ExtendRows& shape, int H, DType state, bool recurrence = false,
                  int64_t workspace_limit = int64_t{1} << 30) {
  const int64_t N = int64_t(shape.lengths.size());
  std::vector<int32_t> cu = {0};
  for (const int length : shape.lengths) cu.push_back(cu.back() + length);
  const int64_t T = cu.back();
  Layer l(N, H, 128, state, int((T + N - 1) / N), recurrence ? Numerics::exact : Numerics::fast, false, false, 1, 2);
  l.p.max_tokens = T;
  l.p.max_workspace_bytes = workspace_limit;
  int32_t* const device_cu = Layer::upload(cu);
  const int64_t bytes = recurrence ? 0 : cuda_extend_chunks_workspace(l.p);
  std::byte* const workspace = device_array<std::byte>(size_t(bytes) + 256);
  const auto run = [&](int round, cudaStream_t s) {
    ExtendLaunch launch{l.tokens(round), l.rows(round), l.pool(), l.pool(), {}};
    launch.rows.cu_seqlens = Layer::view(device_cu, N + 1);
    Execution e = on(s);
    e.workspace = workspace;
    must(recurrence ? cuda_extend(l.p, launch, e) : cuda_extend_chunks(l.p, launch, e), "extend");
  };
  // Outputs depend on earlier tokens alone: of a long row the first ones are judged.
  const int length = shape.lengths[size_t(N / 2)], judged = std::min(length, 512);
  HeadOnHost judge(l, N / 2, H - 1, cu[size_t(N / 2)], judged);
  run(0, nullptr);
  judge.extend(judged);
  judge.compare_outputs();
  if (judged == length) judge.compare_state();
  const Timing t = time_rounds(2, 5, run);
  report(std::string("extend ") + name_of(state) + " H=" + std::to_string(H) + " D=128 rows=" + shape.name +
             (recurrence                                  ? " exact"
              : workspace_limit == kDefaultWorkspaceLimit ? " 64MB"
                                                          : " fast"),
         t, 2 * l.state_bytes() + double(T) * H * (10 * 128 + 2));
  check(cudaFree(workspace), "free");
  check(cudaFree(device_cu), "free");
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  using namespace bench;
  const auto wants = [&](const char* what) {
    for (int i = 1; i < argc; ++i) {
      if (std::string(argv[i]) == what) return true;
    }
    return argc == 1;
  };
  must(cuda_load_kernels(0), "load");
  const DType kStates[] = {DType::fp32, DType::bf16};
  if (wants("copy")) {
    for (const int64_t units : {12, 32, 384, 1024, 4096}) {
      for (const DType s : kStates) {
        bench_copy("copy " + std::to_string(units) + " units " + name_of(s),
                   double(units) * (128 * 128 * double(size_of(s)) + 641));
      }
    }
  }
  if (wants("decode")) {
    for (const DType s : kStates) {
      for (const auto& [N, H] :
           {std::pair<int64_t, int>{1, 12}, {1, 32}, {8, 12}, {8, 32}, {32, 12}, {32, 32}, {128, 32}}) {
        bench_decode(N, H, 128, s);
      }
      bench_decode(32, 32, 64, s);
    }
  }
  if (argc > 1 && wants("decode_tiles")) {
    for (const auto& [N, H] : {std::pair<int64_t, int>{1, 12}, {1, 32}, {32, 12}, {32, 32}, {128, 32}}) {
      for (const int resident : {0, 6, 8, 10}) bench_decode_tiles<Fp32<2>, 2, 12>(N, H, DType::fp32, resident);
      for (const int resident : {3, 4, 5}) bench_decode_tiles<Fp32<2>, 4, 6>(N, H, DType::fp32, resident);
      for (const int resident : {0, 6, 8, 10}) bench_decode_tiles<Bf16<2>, 2, 12>(N, H, DType::bf16, resident);
      for (const int resident : {0, 16, 20}) bench_decode_tiles<Bf16<2>, 1, 20>(N, H, DType::bf16, resident);
      for (const int resident : {0, 16, 20}) bench_decode_tiles<Fp32<2>, 1, 20>(N, H, DType::fp32, resident);
    }
  }
  if (argc > 1 && wants("verify_tiles")) {
    for (const int T : {8, 16}) {
      bench_verify_tiles<Fp32<8>, 4, 2>(T, DType::fp32);
      bench_verify_tiles<Fp32<4>, 8, 2>(T, DType::fp32);
      bench_verify_tiles<Fp32<4>, 4, 4>(T, DType::fp32);
      bench_verify_tiles<Bf16<4>, 4, 3>(T, DType::bf16);
      bench_verify_tiles<Bf16<2>, 8, 2>(T, DType::bf16);
      bench_verify_tiles<Bf16<2>, 4, 5>(T, DType::bf16);
    }
  }
  if (wants("verify")) {
    for (const Numerics numerics : {Numerics::exact, Numerics::fast}) {
      for (const DType s : kStates) {
        for (const int T : {8, 16}) {
          bench_verify(32, 32, 128, s, T, numerics, false, false);
          bench_verify(32, 32, 128, s, T, numerics, true, false);
        }
        bench_verify(32, 32, 128, s, 8, numerics, false, true);
        bench_verify(1, 32, 128, s, 8, numerics, false, false);
        bench_verify(32, 32, 64, s, 8, numerics, false, false);
      }
    }
  }
  // one shape each, for profilers
  if (argc > 1 && wants("one_verify")) bench_verify(32, 32, 128, DType::fp32, 16, Numerics::exact, false, false);
  if (argc > 1 && wants("one_fast")) bench_verify(32, 32, 128, DType::fp32, 8, Numerics::fast, false, false);
  if (argc > 1 && wants("one_fast16")) bench_verify(32, 32, 128, DType::fp32, 16, Numerics::fast, false, false);
  if (argc > 1 && wants("one_decode")) bench_decode(32, 32, 128, DType::fp32);
  if (argc > 1 && wants("one_decode_bf16")) bench_decode(32, 32, 128, DType::bf16);
  if (wants("commit")) {
    for (const DType s : kStates) {
      bench_commit(32, 32, 128, s, Numerics::exact);
      bench_commit(1, 12, 128, s, Numerics::exact);
    }
  }
  if (wants("extend")) {
    for (const int H : {12, 32, 64, 96}) {
      for (const ExtendRows& rows : extend_rows()) bench_extend(rows, H, DType::fp32);
    }
    for (const ExtendRows& rows : extend_rows()) {
      bench_extend(rows, 32, DType::fp32, false, kDefaultWorkspaceLimit);
      bench_extend(rows, 32, DType::bf16);
      if (rows.lengths[0] <= 8192) bench_extend(rows, 32, DType::fp32, true);
    }
    for (const int length : {8, 16, 24, 32, 64}) {  // where chunks begin to pay
      const std::string name = "64x" + std::to_string(length);
      const ExtendRows rows{name.c_str(), std::vector<int>(64, length)};
      bench_extend(rows, 32, DType::fp32, true);
      bench_extend(rows, 32, DType::fp32);
    }
  }
  if (argc > 1 && wants("one_extend")) bench_extend(extend_rows()[0], 96, DType::fp32);
  return 0;
}
