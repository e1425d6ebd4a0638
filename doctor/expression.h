// Conditions and values of the engine descriptions (engines/*.json), written as short expressions:
//   "verify == 'flashinfer' && (topk ?? 1) > 1"
// Operands: null, true, false, numbers, 'text', lists [a, b], names with dots (missing names are null).
// Operators, weakest first: c ? a : b   ??   ||   &&   == != in < <= > >=   + -   * / %   ! - .
// Functions: max, min, upper, lower, len, has(text, part), power_of_two(n), version_at_least(a, b), int(x), str(x).
// An ordered comparison with null or of different types is false; arithmetic with null is null.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kda::doctor {

using Json = nlohmann::json;

class ExpressionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The variables that an expression sees: one JSON object, names with dots descend into it.
class Scope {
 public:
  Scope() : values_(Json::object()) {}
  // The value of a dotted name; null if any step is missing.
  const Json& get(std::string_view name) const;
  const Json& get(const std::vector<std::string>& path) const;
  // Whether the name has been set, be it to null.
  bool has(std::string_view name) const;
  // Sets a dotted name, making the objects on the way.
  void set(std::string_view name, Json value);
  const Json& all() const { return values_; }
  Json take() { return std::move(values_); }

 private:
  Json values_;
};

// A parsed expression. Copies share the tree; evaluation is const and thread-safe.
class Expression {
 public:
  Expression() = default;
  // Throws ExpressionError with the text and the place. An absent text means "always true".
  static Expression parse(std::string_view text);

  Json evaluate(const Scope& scope) const;
  // null, false, 0, "" and [] are false.
  bool truth(const Scope& scope) const;
  // The text it was parsed from; empty = always true.
  const std::string& text() const { return text_; }
  // The dotted names that the expression reads.
  std::vector<std::string> names() const;

  struct Node;

 private:
  std::shared_ptr<const Node> root_;
  std::string text_;
};

bool is_true(const Json& value);
// "0.5.23" against "0.5.3": -1, 0, 1 by numeric parts; text after the numbers ("rc1", ".post1") is compared last.
int compare_versions(std::string_view a, std::string_view b);
// Replaces {name} and {name!r} (quoted as Python's repr does) in a text by the values of the scope; names that were
// never set become "<name>": engines put things there that nobody knows before launch.
std::string fill(std::string_view text, const Scope& scope);
// A value as it appears in messages: text bare, null as None, lists as [a, b].
std::string to_text(const Json& value);

}  // namespace kda::doctor
