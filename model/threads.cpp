#include "model/threads.h"

#include <sched.h>

#include <atomic>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kda::model {
namespace {

// A worker that finds nothing to do looks this often (tens of microseconds) before it sleeps: the regions of one
// decoded token follow each other faster than a sleeping thread wakes up.
constexpr int kSpins = 1000;
// A caller that waits for the last pieces gives up its core at this point: with more threads than cores the thread that
// has the piece may be waiting for this very core.
constexpr int kSpinsBeforeYield = 200;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

// One region at a time is published as (body, arg, count) and a ticket: the region's number in the upper half and the
// next piece in the lower one. A piece is taken by advancing the ticket with a compare-and-swap, which fails once the
// region is over; so a thread that read body, arg and count of another region never acts on them.
struct Threads::State {
  explicit State(int count) : count(count) {}

  const int count;
  std::atomic<uint64_t> ticket{0};
  std::atomic<int64_t> pieces{0};
  std::atomic<void (*)(void*, int64_t)> body{nullptr};
  std::atomic<void*> arg{nullptr};
  std::atomic<int64_t> unfinished{0};
  std::atomic_flag busy;
  std::atomic<uint32_t> epoch{0};  // what sleepers wait on
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;

  // Runs pieces of the region `number` until none is left.
  void work(uint64_t number) {
    for (;;) {
      uint64_t now = ticket.load(std::memory_order_acquire);
      if (now >> 32 != number) return;
      const int64_t piece = static_cast<int64_t>(now & 0xffffffffu);
      const auto run = body.load(std::memory_order_acquire);
      void* const argument = arg.load(std::memory_order_acquire);
      if (piece >= pieces.load(std::memory_order_acquire)) return;
      if (!ticket.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) continue;
      run(argument, piece);
      unfinished.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  void worker() {
    uint32_t seen = 0;
    for (;;) {
      uint32_t now = epoch.load(std::memory_order_acquire);
      for (int i = 0; now == seen && i < kSpins; ++i) {
        pause();
        now = epoch.load(std::memory_order_acquire);
      }
      if (now == seen) {
        sleepers.fetch_add(1, std::memory_order_seq_cst);
        epoch.wait(seen, std::memory_order_seq_cst);
        sleepers.fetch_sub(1, std::memory_order_seq_cst);
        now = epoch.load(std::memory_order_acquire);
      }
      if (stop.load(std::memory_order_acquire)) return;
      seen = now;
      work(ticket.load(std::memory_order_acquire) >> 32);
    }
  }
};

Threads::Threads(int count) : state_(std::make_unique<State>(count > 0 ? count : usable_cores())) {
  for (int i = 1; i < state_->count; ++i) state_->workers.emplace_back([state = state_.get()] { state->worker(); });
}

Threads::~Threads() {
  state_->stop.store(true, std::memory_order_release);
  state_->epoch.fetch_add(1, std::memory_order_seq_cst);
  state_->epoch.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int Threads::count() const { return state_->count; }

void Threads::run(int64_t pieces, void (*body)(void*, int64_t), void* arg) const {
  State& state = *state_;
  constexpr int64_t kMaxPieces = int64_t{1} << 31;  // in the ticket's lower half
  if (pieces <= 1 || state.count == 1 || pieces >= kMaxPieces || state.busy.test_and_set(std::memory_order_acquire)) {
    for (int64_t i = 0; i < pieces; ++i) body(arg, i);
    return;
  }
  const uint64_t number = ((state.ticket.load(std::memory_order_relaxed) >> 32) + 1) & 0xffffffffu;
  // Closed before anything changes: a worker that still holds the last region's ticket and already reads this region's
  // larger count must not be able to advance it.
  state.ticket.store(number << 32 | static_cast<uint64_t>(kMaxPieces), std::memory_order_release);
  state.unfinished.store(pieces, std::memory_order_relaxed);
  state.body.store(body, std::memory_order_release);
  state.arg.store(arg, std::memory_order_release);
  state.pieces.store(pieces, std::memory_order_release);
  state.ticket.store(number << 32, std::memory_order_release);
  state.epoch.fetch_add(1, std::memory_order_seq_cst);
  if (state.sleepers.load(std::memory_order_seq_cst) > 0) state.epoch.notify_all();
  state.work(number);
  for (int spins = 0; state.unfinished.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpinsBeforeYield) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
  state.busy.clear(std::memory_order_release);
}

}  // namespace kda::model
