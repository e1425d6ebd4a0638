// The runner's threads. Regions are short (microseconds) and frequent, so workers spin for a moment before they sleep.
#pragma once

#include <cstdint>
#include <memory>

namespace kda::model {

class Threads {
 public:
  // count: the caller's thread included; 0 = one per usable core.
  explicit Threads(int count);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const;

  // Runs body(i) for i in [0, pieces) and returns when all are done. Which thread runs which piece never changes a
  // result. body must not throw. From within a body, or while another thread's region runs, pieces run on the caller.
  template <class Body>
  void parallel_for(int64_t pieces, const Body& body) const {
    run(
        pieces, [](void* arg, int64_t i) { (*static_cast<const Body*>(arg))(i); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }
  void run(int64_t pieces, void (*body)(void*, int64_t), void* arg) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kda::model
