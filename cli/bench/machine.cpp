#include "cli/bench/machine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cli/bench/machine.cpp"  // this file, once more per target
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cli::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

const char* Name() { return hwy::TargetName(HWY_TARGET); }

int Lanes() { return static_cast<int>(hn::Lanes(hn::ScalableTag<float>())); }

// kChains chains: more than latency (4) times ports (2), fewer than the registers of any target.
float MultiplyAdds(int64_t rounds) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, 0.999f), add = hn::Set(d, 0.001f);
  // Different starts, or the compiler makes the chains one.
  auto a = hn::Set(d, 1.0f), b = hn::Set(d, 1.1f), c = hn::Set(d, 1.2f), e = hn::Set(d, 1.3f), f = hn::Set(d, 1.4f),
       g = hn::Set(d, 1.5f), h = hn::Set(d, 1.6f), i = hn::Set(d, 1.7f), j = hn::Set(d, 1.8f), k = hn::Set(d, 1.9f);
  for (int64_t r = 0; r < rounds; ++r) {
    a = hn::MulAdd(a, factor, add);
    b = hn::MulAdd(b, factor, add);
    c = hn::MulAdd(c, factor, add);
    e = hn::MulAdd(e, factor, add);
    f = hn::MulAdd(f, factor, add);
    g = hn::MulAdd(g, factor, add);
    h = hn::MulAdd(h, factor, add);
    i = hn::MulAdd(i, factor, add);
    j = hn::MulAdd(j, factor, add);
    k = hn::MulAdd(k, factor, add);
  }
  const auto sum = hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, e)), hn::Add(hn::Add(f, g), hn::Add(h, hn::Add(i, j))));
  return hn::GetLane(hn::Add(sum, k));
}

void InPlacePass(float* data, int64_t count) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, 0.999f);
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(hn::Lanes(d))) {
    hn::StoreU(hn::Mul(hn::LoadU(d, data + i), factor), d, data + i);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kda::cli::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kda::cli::bench {
namespace {

HWY_EXPORT(Name);
HWY_EXPORT(Lanes);
HWY_EXPORT(MultiplyAdds);
HWY_EXPORT(InPlacePass);

constexpr int kChains = 10;

using Clock = std::chrono::steady_clock;

// Runs body(thread) on every thread at once; the rates it returns are added.
template <class Body>
double sum_of_rates(int threads, const Body& body) {
  std::vector<double> rates(threads);
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back([&, t] { rates[t] = body(t); });
  rates[0] = body(0);
  for (std::thread& other : others) other.join();
  double sum = 0;
  for (double rate : rates) sum += rate;
  return sum;
}

template <class Body>
double seconds_of(const Body& body) {
  const auto start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

volatile float sink;

}  // namespace

// All are measured in pieces of a tenth of a millisecond, so that a time slice given to somebody else spoils a few
// pieces and not the result.
Machine measure_machine(int threads, int64_t cold_bytes) {
  Machine m;
  m.lanes = HWY_DYNAMIC_DISPATCH(Lanes)();
  m.target = HWY_DYNAMIC_DISPATCH(Name)();
  m.fma_per_second = sum_of_rates(threads, [](int) {
    constexpr int64_t kRounds = 20'000, kPieces = 500;
    double best = 1e30;
    for (int i = 0; i < kPieces; ++i) {
      best = std::min(best, seconds_of([] { sink = HWY_DYNAMIC_DISPATCH(MultiplyAdds)(kRounds); }));
    }
    return double{kChains} * kRounds / best;
  });

  constexpr int64_t kPiece = int64_t{1} << 20;
  const int64_t pieces = std::max<int64_t>(1, cold_bytes / threads / kPiece);
  m.cold_bytes = pieces * kPiece * threads;
  m.in_place_bytes = sum_of_rates(threads, [pieces](int) {
    const std::unique_ptr<float[]> buffer(new float[pieces * kPiece / 4]);
    std::fill_n(buffer.get(), pieces * kPiece / 4, 1.0f);
    std::vector<double> seconds;
    for (int64_t i = 0; i < 2 * pieces; ++i) {
      float* piece = buffer.get() + i % pieces * (kPiece / 4);
      seconds.push_back(seconds_of([piece] { HWY_DYNAMIC_DISPATCH(InPlacePass)(piece, kPiece / 4); }));
    }
    std::sort(seconds.begin(), seconds.end());
    return kPiece / seconds[seconds.size() / 2];
  });
  m.cached_bytes = sum_of_rates(threads, [](int) {
    constexpr int64_t kCached = int64_t{512} << 10, kPasses = 500;
    const std::unique_ptr<float[]> buffer(new float[kCached / 4]);
    std::fill_n(buffer.get(), kCached / 4, 1.0f);
    double best = 1e30;
    for (int i = 0; i < kPasses; ++i) {
      best = std::min(best, seconds_of([&] { HWY_DYNAMIC_DISPATCH(InPlacePass)(buffer.get(), kCached / 4); }));
    }
    return kCached / best;
  });
  return m;
}

}  // namespace kda::cli::bench
#endif  // HWY_ONCE
