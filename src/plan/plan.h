// What the opaque handles of the ABI are. Both are immutable once made, but for the counter of captured calls.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "plan/planner.h"

namespace kda {

struct CaptureSettings {
  std::string directory;  // empty = off
  int64_t calls = 16;     // how many calls are written
};

struct Candidate {
  const KernelRow* row;
  Status status;
  bool taken;
  std::string reason;
};

}  // namespace kda

struct kda_context {
  kda::Capabilities capabilities;
  int cpu_target = 0;
  std::unique_ptr<kda::ThreadPool> threads;
  kda::CaptureSettings capture;
  mutable std::atomic<int64_t> captured_calls{0};  // counted whether or not the file could be written
};

struct kda_plan {
  const kda_context* context;
  kda::Problem problem;
  kda::Choice choice;
  std::vector<kda::Candidate> candidates[kda::kOperationCount];
};
