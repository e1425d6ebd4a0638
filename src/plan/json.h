// Writes JSON into a string. Objects and arrays are closed by the scope that opened them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kda {

class JsonWriter {
 public:
  // Call inside an object before a value; commas are placed automatically.
  JsonWriter& key(std::string_view name) {
    string(name);
    text_ += ": ";
    after_key_ = true;
    return *this;
  }
  void string(std::string_view value);
  void number(int64_t value) {
    separate();
    text_ += std::to_string(value);
  }
  void boolean(bool value) {
    separate();
    text_ += value ? "true" : "false";
  }
  void null() {
    separate();
    text_ += "null";
  }
  template <class Body>
  void object(const Body& body) {
    scope('{', '}', body);
  }
  template <class Body>
  void array(const Body& body) {
    scope('[', ']', body);
  }
  const std::string& text() const { return text_; }

 private:
  void separate() {
    if (!first_ && !after_key_) text_ += ", ";
    first_ = after_key_ = false;
  }
  template <class Body>
  void scope(char open, char close, const Body& body) {
    separate();
    text_ += open;
    first_ = true;
    body();
    text_ += close;
    first_ = false;
  }
  std::string text_;
  bool first_ = true, after_key_ = false;
};

}  // namespace kda
