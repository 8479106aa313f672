#include "core/text/corpus/jinja/expressions.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/text/corpus/jinja/builtins.h"

namespace pptrain::jinja {
namespace {

// Python's integers have no bound.
template <typename Operation>
Value checked(const Operation& overflows, const Value& a, const Value& b) {
  int64_t result = 0;
  if (overflows(a.integer(), b.integer(), &result)) throw Error("a number is too large");
  return result;
}

Value difference(const Value& a, const Value& b) {
  if (a.is<double>() || b.is<double>()) return a.number() - b.number();
  return checked([](auto... x) { return __builtin_sub_overflow(x...); }, a, b);
}

Value sum(const Value& a, const Value& b) {
  if (a.is_text() && b.is_text()) {
    Text out = a.text();
    out += b.text();
    return out;
  }
  if (a.is_indexed() && b.is_indexed() && a.list_kind() == b.list_kind()) {
    List out = a.list();
    out.insert(out.end(), b.list().begin(), b.list().end());
    return {std::move(out), a.list_kind()};
  }
  if (!a.is_number() || !b.is_number())
    throw Error(fmt::format("{} + {} is not possible", a.kind(), b.kind()));
  if (a.is<double>() || b.is<double>()) return a.number() + b.number();
  return checked([](auto... x) { return __builtin_add_overflow(x...); }, a, b);
}

Value product(const Value& a, const Value& b) {
  if (a.is_text() && b.is_integer()) {
    Text out;
    if (b.integer() > 10'000) throw Error("a text is repeated too often");
    for (int64_t i = 0; i < b.integer(); ++i) out += a.text();
    return out;
  }
  if (a.is<double>() || b.is<double>()) return a.number() * b.number();
  return checked([](auto... x) { return __builtin_mul_overflow(x...); }, a, b);
}

// Rounded down, as in Python.
Value quotient(const Value& a, const Value& b) {
  if (b.integer() == 0) throw Error("division by zero");
  const int64_t x = a.integer(), y = b.integer();
  return x / y - ((x % y != 0 && (x % y < 0) != (y < 0)) ? 1 : 0);
}

Value remainder(const Value& a, const Value& b) {
  return a.integer() - quotient(a, b).integer() * b.integer();
}

Value arithmetic(const std::string& sign, const Value& a, const Value& b) {
  if (sign == "+") return sum(a, b);
  if (sign == "*") return product(a, b);
  if (sign == "//") return quotient(a, b);
  if (sign == "%") return remainder(a, b);
  if (sign == "~") return sum(as_text(a), as_text(b));
  if (sign == "/") {
    if (b.number() == 0) throw Error("division by zero");
    return a.number() / b.number();
  }
  return difference(a, b);
}

bool compare(const std::string& sign, const Value& a, const Value& b) {
  if (sign == "==") return equal(a, b);
  if (sign == "!=") return !equal(a, b);
  if (sign == "<") return less(a, b);
  if (sign == ">") return less(b, a);
  if (sign == "<=") return !less(b, a);
  if (sign == ">=") return !less(a, b);
  return contains(b, a) == (sign == "in");
}

// value[begin:end:step], as Python takes it.
Value slice(const Value& value, const std::array<Value, 3>& bounds) {
  if (!value.is_text() && !value.is_indexed()) throw Error(fmt::format("{} has no slices", value.kind()));
  const int64_t size = length_of(value), step = bounds[2].is_none() ? 1 : bounds[2].integer();
  if (step == 0) throw Error("the step of a slice is 0");
  const auto bound = [&](const Value& given, int64_t otherwise) {
    if (given.is_none()) return otherwise;
    const int64_t at = given.integer() < 0 ? given.integer() + size : given.integer();
    return std::clamp<int64_t>(at, step > 0 ? 0 : -1, step > 0 ? size : size - 1);
  };
  const int64_t begin = bound(bounds[0], step > 0 ? 0 : size - 1),
                end = bound(bounds[1], step > 0 ? size : -1);
  if (value.is_text() && step == 1) {
    const std::string_view bytes = value.text().bytes();
    return value.text().slice(byte_of(bytes, begin), byte_of(bytes, std::max(begin, end)));
  }
  List out;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) out.push_back(item_of(value, i));
  if (!value.is_text()) return {std::move(out), value.list_kind()};
  Text text;
  for (const Value& one : out) text += one.text();
  return text;
}

const std::set<std::string, std::less<>> no_names = {"and", "or", "not", "in", "is", "if", "else"};

constexpr int deepest = 100;  // of what is nested in expressions

}  // namespace

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->around_) {
    if (const Value* const found = scope->names_.find(name)) return found;
  }
  return nullptr;
}

void Scope::count_step(int64_t steps) {
  constexpr int64_t most = 1'000'000;
  if ((root_->steps_ += steps) > most) throw Error("the template does not come to an end");
}

struct ExpressionParser::Nesting {
  explicit Nesting(ExpressionParser& parser) : depth(parser.depth_) {
    if (++depth > deepest) parser.fail("expressions are nested too deeply");
  }
  ~Nesting() { --depth; }
  int& depth;
};

bool ExpressionParser::accept(TokenKind kind, std::string_view text) {
  if (!is(kind, text)) return false;
  take();
  return true;
}

Token ExpressionParser::expect(TokenKind kind, std::string_view text) {
  if (!is(kind, text))
    fail(fmt::format("'{}' is not expected here{}", here().text,
                     text.empty() ? "" : fmt::format(", but '{}'", text)));
  return take();
}

void ExpressionParser::fail(const std::string& what) const {
  throw Error(fmt::format("line {}: {}", here().line, what));
}

Expression ExpressionParser::expression() {
  const Nesting nesting(*this);
  Expression value = without_condition();
  while (accept(TokenKind::name, "if")) {
    Expression condition = without_condition();
    Expression other = [](Scope&) { return Value(Undefined{"the value of a condition without else"}); };
    if (accept(TokenKind::name, "else")) other = expression();
    value = [value, condition, other](Scope& scope) {
      return is_true(condition(scope)) ? value(scope) : other(scope);
    };
  }
  return value;
}

Expression ExpressionParser::without_condition() {
  return binary(0);
}

// Levels from the loosest to the tightest: or, and, (not, comparisons), + -, ~, * / // %.
Expression ExpressionParser::binary(size_t level) {
  const Nesting nesting(*this);
  if (level == 2) return logical_not();
  if (level == 6) return unary();
  static const std::array<std::vector<std::string>, 6> signs = {
      {{"or"}, {"and"}, {}, {"+", "-"}, {"~"}, {"*", "/", "//", "%"}}};
  Expression left = binary(level + 1);
  const TokenKind kind = level < 2 ? TokenKind::name : TokenKind::sign;
  while (here().kind == kind && std::ranges::find(signs[level], here().text) != signs[level].end()) {
    const std::string sign = take().text;
    Expression right = binary(level + 1);
    if (level < 2) {
      left = [left, right, either = level == 0](Scope& scope) {
        Value value = left(scope);
        return is_true(value) == either ? value : right(scope);
      };
    } else {
      left = [left, right, sign](Scope& scope) {
        const Value a = left(scope);
        return arithmetic(sign, a, right(scope));
      };
    }
  }
  return left;
}

Expression ExpressionParser::logical_not() {
  const Nesting nesting(*this);
  if (!accept(TokenKind::name, "not")) return comparison();
  return [value = logical_not()](Scope& scope) { return Value(!is_true(value(scope))); };
}

// a < b < c is a < b and b < c.
Expression ExpressionParser::comparison() {
  Expression first = binary(3);
  std::vector<std::pair<std::string, Expression>> others;
  constexpr std::array signs = std::to_array<std::string_view>({"==", "!=", "<", ">", "<=", ">="});
  for (;;) {
    std::string sign;
    if (here().kind == TokenKind::sign && std::ranges::find(signs, here().text) != signs.end()) {
      sign = take().text;
    } else if (accept(TokenKind::name, "in")) {
      sign = "in";
    } else if (is(TokenKind::name, "not") && after(1).text == "in") {
      take(), take();
      sign = "not in";
    } else {
      break;
    }
    others.emplace_back(sign, binary(3));
  }
  if (others.empty()) return first;
  return [first, others](Scope& scope) {
    Value left = first(scope);
    for (const auto& [sign, other] : others) {
      Value right = other(scope);
      if (!compare(sign, left, right)) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  };
}

// A sign comes before filters and tests.
Expression ExpressionParser::unary(bool with_filters) {
  const Nesting nesting(*this);
  Expression value;
  if (accept(TokenKind::sign, "-")) {
    value = [of = unary(/*with_filters=*/false)](Scope& scope) {
      const Value number = of(scope);
      return number.is<double>() ? Value(-number.number()) : difference(Value(int64_t{0}), number);
    };
  } else {
    value = postfix(primary());
  }
  if (with_filters) value = filtered(std::move(value));
  if (is(TokenKind::sign, "**")) fail("** is not supported");
  return value;
}

Expression ExpressionParser::primary() {
  const Nesting nesting(*this);
  const Token token = here();
  switch (token.kind) {
    case TokenKind::name:
      return name();
    case TokenKind::string: {
      std::string text;
      while (is(TokenKind::string)) text += take().text;
      return [value = Value(std::string_view(text))](Scope&) { return value; };
    }
    case TokenKind::integer:
      take();
      return [value = Value(*to_number<int64_t>(token.text))](Scope&) { return value; };
    case TokenKind::number: {
      take();
      double number = 0;
      std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
      return [value = Value(number)](Scope&) { return value; };
    }
    default:
      break;
  }
  if (accept(TokenKind::sign, "(")) {
    if (accept(TokenKind::sign, ")")) return [](Scope&) { return Value(List(), ListKind::tuple); };
    Expression value = tuple();
    expect(TokenKind::sign, ")");
    return value;
  }
  if (accept(TokenKind::sign, "[")) return list();
  if (accept(TokenKind::sign, "{")) return dict();
  fail(token.text.empty() ? "an expression is missing"
                          : fmt::format("'{}' is not expected here", token.text));
}

Expression ExpressionParser::name() {
  if (no_names.contains(here().text)) fail(fmt::format("'{}' is not expected here", here().text));
  const std::string name = take().text;
  if (name == "true" || name == "True") return [](Scope&) { return Value(true); };
  if (name == "false" || name == "False") return [](Scope&) { return Value(false); };
  if (name == "none" || name == "None") return [](Scope&) { return Value(None{}); };
  return [name](Scope& scope) {
    const Value* const found = scope.find(name);
    return found != nullptr ? *found : Value(Undefined{fmt::format("'{}'", name)});
  };
}

Expression ExpressionParser::tuple() {
  Expression first = expression();
  if (!is(TokenKind::sign, ",")) return first;
  std::vector<Expression> all{first};
  while (accept(TokenKind::sign, ",")) {
    if (is(TokenKind::sign, ")") || is(TokenKind::tag_end)) break;
    all.push_back(expression());
  }
  return [all](Scope& scope) {
    List out;
    for (const Expression& one : all) out.push_back(one(scope));
    return Value(std::move(out), ListKind::tuple);
  };
}

Expression ExpressionParser::list() {
  std::vector<Expression> all;
  while (!accept(TokenKind::sign, "]")) {
    all.push_back(expression());
    if (!is(TokenKind::sign, "]")) expect(TokenKind::sign, ",");
  }
  return [all](Scope& scope) {
    List out;
    for (const Expression& one : all) out.push_back(one(scope));
    return Value(std::move(out));
  };
}

Expression ExpressionParser::dict() {
  std::vector<std::pair<Expression, Expression>> all;
  while (!accept(TokenKind::sign, "}")) {
    Expression key = expression();
    expect(TokenKind::sign, ":");
    all.emplace_back(std::move(key), expression());
    if (!is(TokenKind::sign, "}")) expect(TokenKind::sign, ",");
  }
  return [all](Scope& scope) {
    Map out;
    for (const auto& [key, value] : all) out.set(std::string(key(scope).text().bytes()), value(scope));
    return Value(std::move(out));
  };
}

Expression ExpressionParser::postfix(Expression value) {
  for (;;) {
    if (accept(TokenKind::sign, ".")) {
      value = member(std::move(value));
    } else if (accept(TokenKind::sign, "[")) {
      value = subscript(std::move(value));
    } else if (accept(TokenKind::sign, "(")) {
      value = [value, given = arguments()](Scope& scope) {
        scope.count_step();
        const Value function = value(scope);
        return function.function()(given(scope));
      };
    } else {
      return value;
    }
  }
}

Expression ExpressionParser::member(Expression value) {
  if (is(TokenKind::integer)) {
    const Value key(*to_number<int64_t>(take().text));
    return [value, key](Scope& scope) { return item_of(value(scope), key); };
  }
  const std::string name = expect(TokenKind::name).text;
  if (!accept(TokenKind::sign, "("))
    return [value, name](Scope& scope) { return member_of(value(scope), name); };
  return [value, name, given = arguments()](Scope& scope) {
    scope.count_step();
    const Value object = value(scope);
    return call_method(object, name, given(scope));
  };
}

Expression ExpressionParser::subscript(Expression value) {
  std::array<Expression, 3> bounds;
  const Expression nothing = [](Scope&) { return Value(None{}); };
  bounds.fill(nothing);
  bool sliced = false;
  size_t i = 0;
  while (!is(TokenKind::sign, "]")) {
    if (accept(TokenKind::sign, ":")) {
      sliced = true;
      if (++i > 2) fail("a slice has three parts at most");
    } else {
      bounds[i] = expression();
      if (!is(TokenKind::sign, "]") && !is(TokenKind::sign, ":")) fail("']' is missing");
    }
  }
  take();
  if (!sliced)
    return [value, key = bounds[0]](Scope& scope) {
      const Value object = value(scope);
      return item_of(object, key(scope));
    };
  return [value, bounds](Scope& scope) {
    return slice(value(scope), {bounds[0](scope), bounds[1](scope), bounds[2](scope)});
  };
}

std::function<Arguments(Scope&)> ExpressionParser::arguments() {
  std::vector<Expression> values;
  std::vector<std::pair<std::string, Expression>> named;
  while (!accept(TokenKind::sign, ")")) {
    if (is(TokenKind::sign, "*") || is(TokenKind::sign, "**"))
      fail("* and ** of arguments are not supported");
    if (here().kind == TokenKind::name && after(1).kind == TokenKind::sign && after(1).text == "=") {
      const std::string name = take().text;
      take();
      named.emplace_back(name, expression());
    } else {
      values.push_back(expression());
    }
    if (!is(TokenKind::sign, ")")) expect(TokenKind::sign, ",");
  }
  return [values, named](Scope& scope) {
    Arguments out;
    for (const Expression& one : values) out.values.push_back(one(scope));
    for (const auto& [name, one] : named) out.named.emplace_back(name, one(scope));
    return out;
  };
}

Expression ExpressionParser::filtered(Expression value) {
  for (;;) {
    if (accept(TokenKind::sign, "|")) {
      value = filter(std::move(value));
    } else if (accept(TokenKind::name, "is")) {
      value = test(std::move(value));
    } else {
      return value;
    }
  }
}

Expression ExpressionParser::filter(Expression value) {
  const std::string name = here().text;
  const Function* const function = here().kind == TokenKind::name ? find_filter(name) : nullptr;
  if (function == nullptr) fail(fmt::format("the filter '{}' is not supported", name));
  take();
  std::function<Arguments(Scope&)> given = [](Scope&) { return Arguments(); };
  if (accept(TokenKind::sign, "(")) given = arguments();
  return [value, function, given](Scope& scope) {
    scope.count_step();
    Value first = value(scope);
    Arguments all = given(scope);
    all.values.insert(all.values.begin(), std::move(first));
    return (*function)(all);
  };
}

Expression ExpressionParser::test(Expression value) {
  const bool negated = accept(TokenKind::name, "not");
  const std::string name = here().text;
  const Function* const function = here().kind == TokenKind::name ? find_test(name) : nullptr;
  if (function == nullptr) fail(fmt::format("the test '{}' is not supported", name));
  take();
  std::function<Arguments(Scope&)> given = [](Scope&) { return Arguments(); };
  const bool begins_value = is(TokenKind::string) || is(TokenKind::integer) || is(TokenKind::number) ||
                            is(TokenKind::sign, "[") || is(TokenKind::sign, "{") ||
                            (is(TokenKind::name) && here().text != "and" && here().text != "or" &&
                             here().text != "else");  // another word that is no name is an error
  if (accept(TokenKind::sign, "(")) {
    given = arguments();
  } else if (begins_value) {
    given = [one = postfix(primary())](Scope& scope) {
      return Arguments{.values = {one(scope)}, .named = {}};
    };
  }
  return [value, function, given, negated](Scope& scope) {
    Value first = value(scope);
    Arguments all = given(scope);
    all.values.insert(all.values.begin(), std::move(first));
    return Value(is_true((*function)(all)) != negated);
  };
}

}  // namespace pptrain::jinja
