// Runs independent pieces of work on the library's own threads or on the caller's. Which thread runs which piece never
// changes a result: pieces share nothing they write.
#pragma once

#include <cstdint>
#include <memory>

#include "kda/kda.h"

namespace kda {

class ThreadPool {
 public:
  // threads: the caller's thread included; 1 = no own threads. Throws std::system_error if threads cannot start.
  explicit ThreadPool(int threads);
  ThreadPool(kda_parallel_for parallel_for, void* user);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Runs body(i) for i in [0, count) and returns when all are done. Safe from several threads at once; a second caller
  // runs its pieces itself while the own threads are busy. body must not throw.
  template <class Body>
  void parallel_for(int64_t count, const Body& body) const {
    run(
        count, [](void* arg, int64_t i) { (*static_cast<const Body*>(arg))(i); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  void run(int64_t count, void (*body)(void*, int64_t), void* arg) const;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kda
