// A value or one line saying why there is none. Tools pass errors up as text; nothing in io/ throws.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace kda::io {

struct Error {
  std::string text;  // one line: what was read, what was expected, what was found
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}           // NOLINT: implicit, so that `return value;` reads well
  Result(Error error) : error_(std::move(error.text)) {}  // NOLINT: likewise
  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  // Only when ok().
  T& value() { return *value_; }
  const T& value() const { return *value_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  // Empty when ok().
  const std::string& error() const { return error_; }

 private:
  std::optional<T> value_;
  std::string error_;
};

// Success without a value.
struct Done {};
using Outcome = Result<Done>;

}  // namespace kda::io
