#include "cli/generate/progress.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>

namespace kda::cli {

namespace {

std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler stores to it");

extern "C" void note_interrupt(int) { g_interrupted.store(true, std::memory_order_relaxed); }

constexpr int64_t kLongPrompt = 1024;  // tokens; shorter ones are read in no time

}  // namespace

InterruptWatch::InterruptWatch() {
  g_interrupted = false;
  struct sigaction action = {};
  action.sa_handler = note_interrupt;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
}

InterruptWatch::~InterruptWatch() { signal(SIGINT, SIG_DFL); }

bool InterruptWatch::interrupted() const { return g_interrupted.load(std::memory_order_relaxed); }

void PromptBar::update(int64_t done, int64_t total) {
  if (total < kLongPrompt || isatty(STDERR_FILENO) == 0) return;
  constexpr int kWidth = 40;
  const int filled = static_cast<int>(done * kWidth / total);
  fmt::print(stderr, "\rprompt [{}{}] {}/{} tokens", std::string(filled, '#'), std::string(kWidth - filled, ' '), done,
             total);
  std::fflush(stderr);
  shown_ = true;
}

void PromptBar::clear() {
  if (shown_) fmt::print(stderr, "\r\x1b[K");
  shown_ = false;
}

void stream_text(std::string_view text) {
  if (text.empty()) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace kda::cli
