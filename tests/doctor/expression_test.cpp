#include "doctor/expression.h"

#include <gtest/gtest.h>

namespace kda::doctor {
namespace {

Json value(const std::string& text, const Json& names = Json::object()) {
  Scope scope;
  for (const auto& [name, v] : names.items()) scope.set(name, v);
  return Expression::parse(text).evaluate(scope);
}

TEST(Expression, Operators) {
  EXPECT_EQ(value("1 + 2 * 3"), 7);
  EXPECT_EQ(value("(1 + 2) * 3 == 9 && !false"), true);
  EXPECT_EQ(value("7 / 2"), 3);
  EXPECT_EQ(value("-7 % 3"), 2);
  EXPECT_EQ(value("null ?? 'x'"), "x");
  EXPECT_EQ(value("false ? 1 : true ? 2 : 3"), 2);
  EXPECT_EQ(value("'b' in ['a', 'b']"), true);
  EXPECT_EQ(value("'c' not in ['a', 'b']"), true);
  EXPECT_EQ(value("1 / 0"), Json());
  EXPECT_EQ(value("null < 3"), false);
  EXPECT_EQ(value("null + 3"), Json());
  EXPECT_EQ(value("'a' < 3"), false);
  EXPECT_EQ(value("!(1 != 1)"), true);
}

TEST(Expression, NamesAndFunctions) {
  EXPECT_EQ(value("a.b.c", {{"a", {{"b", {{"c", 5}}}}}}), 5);
  EXPECT_EQ(value("a.missing.c", {{"a", 1}}), Json());
  EXPECT_EQ(value("power_of_two(16) && !power_of_two(24) && !power_of_two(0)"), true);
  EXPECT_EQ(value("version_at_least('0.5.23', '0.5.3')"), true);
  EXPECT_EQ(value("version_at_least('12.9', '13')"), false);
  EXPECT_EQ(value("max(1, 4, 2)"), 4);
  EXPECT_EQ(value("upper('eagle')"), "EAGLE");
  EXPECT_EQ(value("len([1, 2])"), 2);
  EXPECT_EQ(Expression::parse("a.b && (c ?? a.b) == 1").names(), (std::vector<std::string>{"a.b", "c"}));
}

TEST(Expression, BadTextsSayWhere) {
  for (const char* text :
       {"", "1 +", "(1", "'open", "a b", "[1, ", "? 1 : 2", "1 ? 2", "a not b", "99999999999999999999"})
    EXPECT_THROW(Expression::parse(text), ExpressionError) << text;
  EXPECT_THROW(Expression::parse(std::string(100000, '(')), ExpressionError);
  EXPECT_THROW(Expression::parse(std::string(100000, '!')), ExpressionError);
}

TEST(Expression, Versions) {
  EXPECT_LT(compare_versions("0.5.3", "0.5.23"), 0);
  EXPECT_EQ(compare_versions("0.33", "0.33.0"), 0);
  EXPECT_GT(compare_versions("1", "0.99"), 0);
  EXPECT_NE(compare_versions("0.5.23.post1", "0.5.23"), 0);
}

TEST(Expression, Fill) {
  Scope scope;
  scope.set("opt.x", 4);
  scope.set("dtype", "bfloat16");
  scope.set("opt.none", nullptr);
  EXPECT_EQ(fill("x={opt.x} {dtype!r} {missing} {opt.none!r} {not a name} {", scope),
            "x=4 'bfloat16' <missing> None {not a name} {");
}

}  // namespace
}  // namespace kda::doctor
