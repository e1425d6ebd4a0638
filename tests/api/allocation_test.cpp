// "Can you?" and calls allocate nothing: every allocation of this program is counted.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "api/world.h"

namespace {
thread_local int64_t g_allocations = 0;
void* counted_or_null(size_t size) {
  ++g_allocations;
  return std::malloc(size == 0 ? 1 : size);
}
void* counted(size_t size) {
  if (void* p = counted_or_null(size)) return p;
  throw std::bad_alloc();
}
}  // namespace

// All forms that may meet a replaced delete, or a sanitizer sees new meet free. Not inlined: GCC would see malloc meet
// delete, or new meet free, and warn.
[[gnu::noinline]] void* operator new(size_t size) { return counted(size); }
[[gnu::noinline]] void* operator new[](size_t size) { return counted(size); }
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept { return counted_or_null(size); }
[[gnu::noinline]] void* operator new[](size_t size, const std::nothrow_t&) noexcept { return counted_or_null(size); }
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, size_t) noexcept { std::free(p); }

namespace kda_test {
namespace {

template <class Body>
int64_t allocations_of(const Body& body) {
  const int64_t before = g_allocations;
  body();
  return g_allocations - before;
}

TEST(Allocations, AreCounted) {
  EXPECT_GE(allocations_of([] {
              std::vector<int> v(100);
              (void)v.data();
              delete new int(1);
            }),
            1);
}

TEST(Allocations, NoneInCanRun) {
  kda::Context context;
  kda_problem problem = World::default_problem();
  problem.kernels = "decode=reference_decode";
  kda_problem refused = problem;
  refused.verify_numerics = KDA_FAST;
  auto error = kda::args<kda_error>();
  EXPECT_EQ(allocations_of([&] {
              kda_can_run(context.get(), &problem, &error);
              kda_can_run(context.get(), &refused, &error);
            }),
            0);
  EXPECT_EQ(error.status, KDA_E_NO_KERNEL);
}

TEST(Allocations, NoneInCalls) {
  for (int32_t backend : {KDA_BACKEND_REFERENCE, KDA_BACKEND_CPU}) {
    kda_problem problem = World::default_problem();
    problem.backend = backend;
    World w(problem);
    const auto none = [&](const char* what, auto function, const auto& args) {
      auto error = kda::args<kda_error>();
      kda_status status = KDA_OK;
      const int64_t count = allocations_of([&] { status = function(w.plan.get(), &args, &w.resources, &error); });
      EXPECT_EQ(status, KDA_OK) << error.message;
      EXPECT_EQ(count, 0) << what << " on backend " << backend;
    };
    none("extend", kda_extend, w.extend_args());
    none("decode", kda_decode, w.decode_args());
    none("verify", kda_verify, w.verify_args());
    none("pending", kda_verify, w.pending_args());
    none("commit", kda_commit, w.commit_args());
    none("move", kda_move, w.move_args());
    none("conv_extend", kda_conv_extend, w.conv_args());
    none("conv_commit", kda_conv_commit, w.conv_commit_args());
    auto refused = w.extend_args();
    w.slots[2] = 5;
    auto error = kda::args<kda_error>();
    EXPECT_EQ(allocations_of([&] { kda_extend(w.plan.get(), &refused, &w.resources, &error); }), 0);
    EXPECT_EQ(error.status, KDA_E_SLOT_DUPLICATE);
  }
}

}  // namespace
}  // namespace kda_test
