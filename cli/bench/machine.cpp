#include "cli/bench/machine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cli/bench/machine.cpp"  // this file, once more per target
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cli::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

const char* Name() { return hwy::TargetName(HWY_TARGET); }

int Lanes() { return static_cast<int>(hn::Lanes(hn::ScalableTag<float>())); }

// 10 chains: more than latency (4) times ports (2), fewer than the registers of any target.
constexpr int kChains = 10;

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

using Clock = std::chrono::steady_clock;

// Seconds until every thread has finished body(thread), the best of `repeats`.
template <class Body>
double best_seconds(int threads, int repeats, const Body& body) {
  double best = 1e30;
  for (int r = 0; r < repeats; ++r) {
    const auto start = Clock::now();
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back([&body, t] { body(t); });
    body(0);
    for (std::thread& other : others) other.join();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

volatile float sink;

}  // namespace

Machine measure_machine(int threads, int64_t cold_bytes) {
  Machine m;
  m.lanes = HWY_DYNAMIC_DISPATCH(Lanes)();
  m.target = HWY_DYNAMIC_DISPATCH(Name)();
  constexpr int64_t kRounds = 4'000'000;
  const double seconds = best_seconds(threads, 7, [](int) { sink = HWY_DYNAMIC_DISPATCH(MultiplyAdds)(kRounds); });
  m.fma_per_second = 10.0 * kRounds * threads / seconds;

  const int64_t count = cold_bytes / 4 / threads / 1024 * 1024;
  std::vector<std::unique_ptr<float[]>> buffers;
  for (int t = 0; t < threads; ++t) {
    buffers.emplace_back(new float[count]);
    std::fill_n(buffers.back().get(), count, 1.0f);
  }
  const double pass = best_seconds(threads, 5, [&](int t) {
    HWY_DYNAMIC_DISPATCH(InPlacePass)
    (buffers[t].get(), count);
  });
  m.cold_bytes = count * 4 * threads;
  m.in_place_bytes = m.cold_bytes / pass;
  return m;
}

}  // namespace kda::cli::bench
#endif  // HWY_ONCE
