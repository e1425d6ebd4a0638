// What kda generate shows while it works: streamed text, a progress bar, and Ctrl-C.
#pragma once

#include <cstdint>
#include <string_view>

namespace kda::cli {

// Exit code after Ctrl-C, as shells have it: 128 + SIGINT. What was generated until then has been printed.
inline constexpr int kInterruptedExit = 130;

// While this object lives, the first Ctrl-C is only noted; a second one ends the program as usual.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;
  bool interrupted() const;
};

// A bar on stderr for prompts that take a while; nothing unless stderr is a terminal.
class PromptBar {
 public:
  ~PromptBar() { clear(); }
  void update(int64_t done, int64_t total);
  void clear();

 private:
  bool shown_ = false;
};

// Writes text to stdout at once.
void stream_text(std::string_view text);

}  // namespace kda::cli
