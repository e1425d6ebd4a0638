#include "expression.h"

#include <algorithm>
#include <cctype>
#include <cmath>

namespace kda::doctor {

namespace {
const Json kNull;
constexpr int kMaxDepth = 64;  // descriptions can come from --data; a deep text must not exhaust the stack
}  // namespace

bool Scope::has(std::string_view name) const {
  const size_t dot = name.rfind('.');
  const Json& holder = dot == std::string_view::npos ? values_ : get(name.substr(0, dot));
  return holder.is_object() &&
         holder.contains(std::string(dot == std::string_view::npos ? name : name.substr(dot + 1)));
}

const Json& Scope::get(const std::vector<std::string>& path) const {
  const Json* at = &values_;
  for (const std::string& part : path) {
    if (!at->is_object()) return kNull;
    const auto found = at->find(part);
    if (found == at->end()) return kNull;
    at = &*found;
  }
  return *at;
}

const Json& Scope::get(std::string_view name) const {
  const Json* at = &values_;
  while (true) {
    const size_t dot = name.find('.');
    if (!at->is_object()) return kNull;
    const auto found = at->find(std::string(name.substr(0, dot)));
    if (found == at->end()) return kNull;
    at = &*found;
    if (dot == std::string_view::npos) return *at;
    name.remove_prefix(dot + 1);
  }
}

void Scope::set(std::string_view name, Json value) {
  Json* at = &values_;
  while (true) {
    const size_t dot = name.find('.');
    if (!at->is_object()) *at = Json::object();
    at = &(*at)[std::string(name.substr(0, dot))];
    if (dot == std::string_view::npos) break;
    name.remove_prefix(dot + 1);
  }
  *at = std::move(value);
}

bool is_true(const Json& value) {
  switch (value.type()) {
    case Json::value_t::boolean:
      return value.get<bool>();
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
    case Json::value_t::number_float:
      return value.get<double>() != 0;
    case Json::value_t::string:
      return !value.get_ref<const std::string&>().empty();
    case Json::value_t::array:
    case Json::value_t::object:
      return !value.empty();
    default:
      return false;
  }
}

int compare_versions(std::string_view a, std::string_view b) {
  const auto part = [](std::string_view& text) -> long {
    size_t n = 0;
    long value = 0;
    while (n < text.size() && std::isdigit(static_cast<unsigned char>(text[n])) && n < 9) {
      value = value * 10 + (text[n] - '0');
      ++n;
    }
    if (n == 0) return -1;
    text.remove_prefix(n);
    return value;
  };
  while (!a.empty() || !b.empty()) {
    std::string_view x = a, y = b;
    const long m = x.empty() ? 0 : part(x), n = y.empty() ? 0 : part(y);
    if (m < 0 || n < 0) return a == b ? 0 : (a < b ? -1 : 1);
    if (m != n) return m < n ? -1 : 1;
    a = x;
    b = y;
    if (!a.empty() && a.front() == '.') a.remove_prefix(1);
    if (!b.empty() && b.front() == '.') b.remove_prefix(1);
  }
  return 0;
}

std::string to_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_array()) {
    std::string out = "[";
    for (size_t i = 0; i < value.size(); ++i) {
      if (i) out += ", ";
      out += value[i].is_string() ? "'" + value[i].get<std::string>() + "'" : to_text(value[i]);
    }
    return out + "]";
  }
  if (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()) &&
      std::abs(value.get<double>()) < 1e15)
    return std::to_string(static_cast<long long>(value.get<double>()));
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string fill(std::string_view text, const Scope& scope) {
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    const size_t open = text.find('{', at);
    const size_t close = open == std::string_view::npos ? open : text.find('}', open);
    if (close == std::string_view::npos) break;
    out += text.substr(at, open - at);
    std::string_view name = text.substr(open + 1, close - open - 1);
    const bool repr = name.size() > 2 && name.substr(name.size() - 2) == "!r";
    if (repr) name.remove_suffix(2);
    const bool is_name = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
      return std::isalnum(c) || c == '_' || c == '.';
    });
    if (!is_name) {
      out += text.substr(open, close - open + 1);
    } else if (!scope.has(name)) {
      out += '<';
      for (const char c : name) out += c == '_' ? ' ' : c;
      out += '>';
    } else {
      const Json& value = scope.get(name);
      out += repr && value.is_string() ? "'" + value.get<std::string>() + "'" : to_text(value);
    }
    at = close + 1;
  }
  out += text.substr(at);
  return out;
}

enum class Op {
  kLiteral,
  kName,
  kList,
  kCall,
  kNot,
  kNegate,
  kAnd,
  kOr,
  kCoalesce,
  kChoice,
  kEqual,
  kNotEqual,
  kIn,
  kLess,
  kLessEqual,
  kMore,
  kMoreEqual,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kModulo
};

struct Expression::Node {
  Op op = Op::kLiteral;
  Json value;                     // literal
  std::string name;               // name or function
  std::vector<std::string> path;  // a name's parts
  std::vector<std::shared_ptr<const Node>> arguments;
};

namespace {

using NodePtr = std::shared_ptr<const Expression::Node>;

NodePtr make(Op op, std::vector<NodePtr> arguments) {
  auto node = std::make_shared<Expression::Node>();
  node->op = op;
  node->arguments = std::move(arguments);
  return node;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  NodePtr parse() {
    NodePtr node = choice();
    space();
    if (at_ != text_.size()) fail("unexpected text");
    return node;
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw ExpressionError("expression \"" + std::string(text_) + "\", character " + std::to_string(at_ + 1) + ": " +
                          what);
  }
  void space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool eat(std::string_view token) {
    space();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }
  bool eat_word(std::string_view word) {
    space();
    if (text_.substr(at_, word.size()) != word) return false;
    const size_t end = at_ + word.size();
    if (end < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[end])) || text_[end] == '_')) return false;
    at_ = end;
    return true;
  }

  NodePtr choice() {
    if (++depth_ > kMaxDepth) fail("nested too deeply");
    NodePtr node = coalesce();
    space();
    if (at_ < text_.size() && text_[at_] == '?') {
      ++at_;
      NodePtr yes = choice();
      if (!eat(":")) fail("':' expected");
      NodePtr no = choice();
      node = make(Op::kChoice, {node, yes, no});
    }
    --depth_;
    return node;
  }
  NodePtr coalesce() {
    NodePtr node = either();
    while (eat("??")) node = make(Op::kCoalesce, {node, either()});
    return node;
  }
  NodePtr either() {
    NodePtr node = both();
    while (eat("||")) node = make(Op::kOr, {node, both()});
    return node;
  }
  NodePtr both() {
    NodePtr node = comparison();
    while (eat("&&")) node = make(Op::kAnd, {node, comparison()});
    return node;
  }
  NodePtr comparison() {
    NodePtr node = sum();
    static constexpr std::pair<std::string_view, Op> kOps[] = {{"==", Op::kEqual},     {"!=", Op::kNotEqual},
                                                               {"<=", Op::kLessEqual}, {">=", Op::kMoreEqual},
                                                               {"<", Op::kLess},       {">", Op::kMore}};
    for (const auto& [token, op] : kOps)
      if (eat(token)) return make(op, {node, sum()});
    if (eat_word("in")) return make(Op::kIn, {node, sum()});
    if (eat_word("not")) {
      if (!eat_word("in")) fail("'in' expected");
      return make(Op::kNot, {make(Op::kIn, {node, sum()})});
    }
    return node;
  }
  NodePtr sum() {
    NodePtr node = product();
    while (true) {
      if (eat("+"))
        node = make(Op::kAdd, {node, product()});
      else if (eat("-"))
        node = make(Op::kSubtract, {node, product()});
      else
        return node;
    }
  }
  NodePtr product() {
    NodePtr node = unary();
    while (true) {
      if (eat("*"))
        node = make(Op::kMultiply, {node, unary()});
      else if (eat("/"))
        node = make(Op::kDivide, {node, unary()});
      else if (eat("%"))
        node = make(Op::kModulo, {node, unary()});
      else
        return node;
    }
  }
  NodePtr unary() {
    if (++depth_ > kMaxDepth) fail("nested too deeply");
    NodePtr node;
    space();
    if (at_ < text_.size() && text_[at_] == '!' && text_.substr(at_, 2) != "!=") {
      ++at_;
      node = make(Op::kNot, {unary()});
    } else if (eat("-")) {
      node = make(Op::kNegate, {unary()});
    } else {
      node = primary();
    }
    --depth_;
    return node;
  }
  NodePtr primary() {
    space();
    if (at_ >= text_.size()) fail("an operand is missing");
    const char c = text_[at_];
    if (eat("(")) {
      NodePtr node = choice();
      if (!eat(")")) fail("')' expected");
      return node;
    }
    if (eat("[")) return make(Op::kList, list(']'));
    if (c == '\'') {
      const size_t end = text_.find('\'', at_ + 1);
      if (end == std::string_view::npos) fail("a text is not closed");
      NodePtr node = literal(std::string(text_.substr(at_ + 1, end - at_ - 1)));
      at_ = end + 1;
      return node;
    }
    if (std::isdigit(static_cast<unsigned char>(c))) {
      size_t end = at_;
      while (end < text_.size() && (std::isdigit(static_cast<unsigned char>(text_[end])) || text_[end] == '.')) ++end;
      const std::string digits(text_.substr(at_, end - at_));
      at_ = end;
      if (digits.size() > 18) fail("a number is too long");
      if (digits.find('.') != std::string::npos) return literal(std::stod(digits));
      return literal(std::stoll(digits));
    }
    if (!std::isalpha(static_cast<unsigned char>(c)) && c != '_') fail("an operand is expected");
    size_t end = at_;
    while (end < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[end])) || text_[end] == '_' || text_[end] == '.'))
      ++end;
    const std::string name(text_.substr(at_, end - at_));
    at_ = end;
    if (name == "null") return literal(nullptr);
    if (name == "true") return literal(true);
    if (name == "false") return literal(false);
    auto node = std::make_shared<Expression::Node>();
    node->name = name;
    if (eat("(")) {
      node->op = Op::kCall;
      node->arguments = list(')');
    } else {
      node->op = Op::kName;
      for (size_t begin = 0; begin <= name.size();) {
        const size_t dot = std::min(name.find('.', begin), name.size());
        node->path.push_back(name.substr(begin, dot - begin));
        begin = dot + 1;
      }
    }
    return node;
  }
  std::vector<NodePtr> list(char close) {
    std::vector<NodePtr> items;
    const char token[] = {close, 0};
    if (eat(token)) return items;
    do items.push_back(choice());
    while (eat(","));
    if (!eat(token)) fail("a list is not closed");
    return items;
  }
  static NodePtr literal(Json value) {
    auto node = std::make_shared<Expression::Node>();
    node->value = std::move(value);
    return node;
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
};

bool comparable(const Json& a, const Json& b) {
  return (a.is_number() && b.is_number()) || (a.is_string() && b.is_string());
}

Json arithmetic(Op op, const Json& a, const Json& b) {
  if (op == Op::kAdd && a.is_string() && b.is_string()) return a.get<std::string>() + b.get<std::string>();
  if (op == Op::kAdd && a.is_array() && b.is_array()) {
    Json out = a;
    out.insert(out.end(), b.begin(), b.end());
    return out;
  }
  if (!a.is_number() || !b.is_number()) return nullptr;
  const double x = a.get<double>(), y = b.get<double>();
  if ((op == Op::kDivide || op == Op::kModulo) && y == 0) return nullptr;
  double result = 0;
  switch (op) {
    case Op::kAdd:
      result = x + y;
      break;
    case Op::kSubtract:
      result = x - y;
      break;
    case Op::kMultiply:
      result = x * y;
      break;
    case Op::kDivide:  // integers divide as integers, as the descriptions mean head counts and pages
      result = a.is_number_float() || b.is_number_float() ? x / y : std::floor(x / y);
      break;
    default:
      result = x - y * std::floor(x / y);
  }
  if (a.is_number_float() || b.is_number_float() || !std::isfinite(result) || std::abs(result) > 1e18) return result;
  return static_cast<long long>(result);
}

Json call(const std::string& name, const std::vector<Json>& a) {
  const auto number = [&](size_t i) { return i < a.size() && a[i].is_number(); };
  if (name == "max" || name == "min") {
    Json best;
    for (size_t i = 0; i < a.size(); ++i)
      if (number(i) && (best.is_null() || (name == "max") == (a[i].get<double>() > best.get<double>()))) best = a[i];
    return best;
  }
  if ((name == "upper" || name == "lower") && a.size() == 1) {
    if (!a[0].is_string()) return nullptr;
    std::string text = a[0].get<std::string>();
    for (char& c : text)
      c = static_cast<char>(name == "upper" ? std::toupper(static_cast<unsigned char>(c))
                                            : std::tolower(static_cast<unsigned char>(c)));
    return text;
  }
  if (name == "len" && a.size() == 1)
    return a[0].is_string() ? a[0].get_ref<const std::string&>().size() : (a[0].is_null() ? 0 : a[0].size());
  if (name == "has" && a.size() == 2)
    return a[0].is_string() && a[1].is_string() &&
           a[0].get<std::string>().find(a[1].get<std::string>()) != std::string::npos;
  if (name == "power_of_two" && a.size() == 1) {
    if (!a[0].is_number_integer()) return false;
    const long long n = a[0].get<long long>();
    return n > 0 && (n & (n - 1)) == 0;
  }
  if (name == "version_at_least" && a.size() == 2)
    return a[0].is_string() && a[1].is_string() &&
           compare_versions(a[0].get<std::string>(), a[1].get<std::string>()) >= 0;
  if (name == "int" && a.size() == 1) {
    if (a[0].is_number()) return static_cast<long long>(a[0].get<double>());
    if (!a[0].is_string()) return nullptr;
    const std::string& text = a[0].get_ref<const std::string&>();
    if (text.empty() || text.size() > 15 || !std::all_of(text.begin(), text.end(), ::isdigit)) return nullptr;
    return std::stoll(text);
  }
  if (name == "str" && a.size() == 1) return to_text(a[0]);
  return nullptr;
}

bool truth_of(const Expression::Node& node, const Scope& scope);
Json evaluate_node(const Expression::Node& node, const Scope& scope);

// Calls `use` with a node's value, without copying names and literals.
template <typename Use>
bool with_value(const Expression::Node& node, const Scope& scope, const Use& use) {
  if (node.op == Op::kLiteral) return use(node.value);
  if (node.op == Op::kName) return use(scope.get(node.path));
  return use(evaluate_node(node, scope));
}

Json evaluate_node(const Expression::Node& node, const Scope& scope) {
  const auto value = [&](size_t i) { return evaluate_node(*node.arguments[i], scope); };
  switch (node.op) {
    case Op::kLiteral:
      return node.value;
    case Op::kName:
      return scope.get(node.path);
    case Op::kList: {
      Json out = Json::array();
      for (size_t i = 0; i < node.arguments.size(); ++i) out.push_back(value(i));
      return out;
    }
    case Op::kCall: {
      std::vector<Json> values;
      for (size_t i = 0; i < node.arguments.size(); ++i) values.push_back(value(i));
      return call(node.name, values);
    }
    case Op::kNot:
      return !truth_of(*node.arguments[0], scope);
    case Op::kNegate:
      return arithmetic(Op::kSubtract, 0, value(0));
    case Op::kAnd:
      return truth_of(*node.arguments[0], scope) && truth_of(*node.arguments[1], scope);
    case Op::kOr:
      return truth_of(*node.arguments[0], scope) || truth_of(*node.arguments[1], scope);
    case Op::kCoalesce: {
      Json first = value(0);
      return first.is_null() ? value(1) : first;
    }
    case Op::kChoice:
      return is_true(value(0)) ? value(1) : value(2);
    case Op::kEqual:
    case Op::kNotEqual: {
      const bool equal = with_value(*node.arguments[0], scope, [&](const Json& a) {
        return with_value(*node.arguments[1], scope, [&](const Json& b) { return a == b; });
      });
      return equal == (node.op == Op::kEqual);
    }
    case Op::kIn: {
      const Expression::Node& set = *node.arguments[1];
      if (set.op == Op::kList)  // the usual form, [a, b]
        return with_value(*node.arguments[0], scope, [&](const Json& item) {
          return std::any_of(set.arguments.begin(), set.arguments.end(), [&](const NodePtr& member) {
            return with_value(*member, scope, [&](const Json& other) { return item == other; });
          });
        });
      const Json item = value(0), list = value(1);
      if (list.is_object()) return item.is_string() && list.contains(item.get<std::string>());
      return list.is_array() && std::find(list.begin(), list.end(), item) != list.end();
    }
    case Op::kLess:
    case Op::kLessEqual:
    case Op::kMore:
    case Op::kMoreEqual: {
      const Json a = value(0), b = value(1);
      if (!comparable(a, b)) return false;
      if (node.op == Op::kLess) return a < b;
      if (node.op == Op::kLessEqual) return a <= b;
      return node.op == Op::kMore ? a > b : a >= b;
    }
    default:
      return arithmetic(node.op, value(0), value(1));
  }
}

bool truth_of(const Expression::Node& node, const Scope& scope) {
  return with_value(node, scope, [](const Json& value) { return is_true(value); });
}

void collect(const Expression::Node& node, std::vector<std::string>& names) {
  if (node.op == Op::kName) names.push_back(node.name);
  for (const NodePtr& argument : node.arguments) collect(*argument, names);
}

}  // namespace

Expression Expression::parse(std::string_view text) {
  Expression expression;
  expression.root_ = Parser(text).parse();
  expression.text_ = std::string(text);
  return expression;
}

Json Expression::evaluate(const Scope& scope) const { return root_ ? evaluate_node(*root_, scope) : Json(true); }
bool Expression::truth(const Scope& scope) const { return !root_ || truth_of(*root_, scope); }

std::vector<std::string> Expression::names() const {
  std::vector<std::string> names;
  if (root_) collect(*root_, names);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace kda::doctor
