#include "core/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kda {
namespace {

// How long an idle worker looks for the next job before it sleeps: tens of microseconds, which covers the gap between
// the calls of one layer and the next. Waking a sleeping thread costs about as much.
constexpr int kSpinsBeforeSleep = 2000;
constexpr int kSpinsBeforeYield = 1000;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The gate holds the number of the job, whether it is open to workers, and how many workers are inside.
constexpr uint64_t kInside = 0xFFFFFFFF;
constexpr uint64_t kOpen = uint64_t{1} << 32;
constexpr uint64_t kJob = uint64_t{1} << 33;

}  // namespace

struct ThreadPool::State {
  kda_parallel_for external = nullptr;
  void* external_user = nullptr;

  std::vector<std::thread> workers;
  std::atomic_flag busy = ATOMIC_FLAG_INIT;  // held by the caller whose job the workers run

  // The job: written while the gate is closed and empty, read by workers that passed the gate.
  void (*body)(void*, int64_t) = nullptr;
  void* arg = nullptr;
  int64_t count = 0;
  std::atomic<int64_t> next{0};

  std::atomic<uint64_t> gate{0};
  std::atomic<bool> stopping{false};
  std::atomic<int> sleepers{0};
  std::mutex mutex;
  std::condition_variable wake;

  void work() {
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      body(arg, i);
    }
  }

  static bool is_new(uint64_t gate_value, uint64_t last_job) {
    return (gate_value & kOpen) != 0 && gate_value / kJob != last_job;
  }

  void worker_loop() {
    uint64_t last_job = 0;
    while (wait_for_job(last_job)) {
      uint64_t seen = gate.load();
      bool entered = false;
      while (is_new(seen, last_job) && !(entered = gate.compare_exchange_weak(seen, seen + 1))) {
      }
      if (!entered) continue;
      last_job = seen / kJob;
      work();
      gate.fetch_sub(1);
    }
  }

  // False when the pool stops.
  bool wait_for_job(uint64_t last_job) {
    for (int spin = 0; spin < kSpinsBeforeSleep; ++spin) {
      if (stopping.load(std::memory_order_relaxed)) return false;
      if (is_new(gate.load(), last_job)) return true;
      pause();
    }
    std::unique_lock<std::mutex> lock(mutex);
    sleepers.fetch_add(1);  // before the gate is read again: publish() opens the gate, then reads sleepers
    wake.wait(lock, [&] { return stopping.load() || is_new(gate.load(), last_job); });
    sleepers.fetch_sub(1);
    return !stopping.load();
  }

  void publish() {
    gate.store((gate.load() / kJob + 1) * kJob | kOpen);
    if (sleepers.load() == 0) return;
    std::lock_guard<std::mutex> lock(mutex);
    if (count == 2) {
      wake.notify_one();
    } else {
      wake.notify_all();
    }
  }

  // Closes the gate, so that a worker that wakes late finds no job, and waits for those inside.
  void close() {
    gate.fetch_and(~kOpen);
    for (int spin = 0; (gate.load() & kInside) != 0; ++spin) {
      if (spin < kSpinsBeforeYield) {
        pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

  void stop() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      stopping = true;
    }
    wake.notify_all();
    for (std::thread& worker : workers) worker.join();
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  State* state = state_.get();
  try {
    for (int i = 1; i < threads; ++i) state->workers.emplace_back([state] { state->worker_loop(); });
  } catch (...) {
    state->stop();
    throw;
  }
}

ThreadPool::ThreadPool(kda_parallel_for parallel_for, void* user) : state_(std::make_unique<State>()) {
  state_->external = parallel_for;
  state_->external_user = user;
}

ThreadPool::~ThreadPool() { state_->stop(); }

int ThreadPool::threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::run(int64_t count, void (*body)(void*, int64_t), void* arg) const {
  State& state = *state_;
  if (state.external != nullptr && count > 1) {
    state.external(state.external_user, count, body, arg);
    return;
  }
  if (count <= 1 || state.workers.empty() || state.busy.test_and_set(std::memory_order_acquire)) {
    for (int64_t i = 0; i < count; ++i) body(arg, i);
    return;
  }
  state.body = body;
  state.arg = arg;
  state.count = count;
  state.next.store(0, std::memory_order_relaxed);
  state.publish();
  state.work();
  state.close();
  state.busy.clear(std::memory_order_release);
}

}  // namespace kda
