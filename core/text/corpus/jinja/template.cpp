#include "core/text/corpus/jinja/template.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <initializer_list>
#include <string>

#include "core/base/error.h"
#include "core/text/corpus/jinja/builtins.h"
#include "core/text/corpus/jinja/expressions.h"

namespace pptrain::jinja {
namespace {

// What a statement throws, with its line.
struct PlacedError : Error {
  using Error::Error;
};

template <typename Body>
auto placed(int64_t line, const Body& body) {
  try {
    return body();
  } catch (const PlacedError&) {
    throw;
  } catch (const Error& error) {
    throw PlacedError(fmt::format("line {}: {}", line, error.what()));
  }
}

Flow run_all(const std::vector<Statement>& body, Scope& scope, Output& out) {
  for (const Statement& one : body) {
    if (const Flow flow = one(scope, out); flow != Flow::next) return flow;
  }
  return Flow::next;
}

// Gives one value to one name, or the elements of a list to several.
void assign(Scope& scope, const std::vector<std::string>& names, const Value& value) {
  if (names.size() == 1) return scope.set(names[0], value);
  const List all = elements(value);
  if (all.size() != names.size())
    throw Error(fmt::format("{} values for {} names", all.size(), names.size()));
  for (size_t i = 0; i < names.size(); ++i) scope.set(names[i], all[i]);
}

Value loop_of(const List& items, size_t i) {
  const auto number = [](size_t n) { return Value(static_cast<int64_t>(n)); };
  const size_t n = items.size();
  Map loop{.items = {}, .kind = Map::Kind::loop};
  loop.set("index", number(i + 1));
  loop.set("index0", number(i));
  loop.set("revindex", number(n - i));
  loop.set("revindex0", number(n - i - 1));
  loop.set("first", i == 0);
  loop.set("last", i + 1 == n);
  loop.set("length", number(n));
  loop.set("depth", number(1));  // of recursive loops
  loop.set("depth0", number(0));
  loop.set("previtem", i > 0 ? items[i - 1] : Value(Undefined{"'loop.previtem'"}));
  loop.set("nextitem", i + 1 < n ? items[i + 1] : Value(Undefined{"'loop.nextitem'"}));
  return loop;
}

class Parser : ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  std::vector<Statement> all() {
    std::vector<Statement> body = block({});
    if (!is(TokenKind::end)) fail(fmt::format("'{}' ends nothing", after(1).text));
    return body;
  }

 private:
  // Up to a tag of one of these names, which is not taken.
  std::vector<Statement> block(std::initializer_list<std::string_view> ends) {
    if (++depth_ > 50) fail("blocks are nested too deeply");
    std::vector<Statement> body;
    for (;;) {
      if (is(TokenKind::end)) {
        if (ends.size() > 0) fail(fmt::format("{{% {} %}} is missing", *(ends.end() - 1)));
        break;
      }
      if (is(TokenKind::tag_begin) && (std::ranges::find(ends, after(1).text) != ends.end() ||
                                       (ends.size() == 0 && after(1).text.starts_with("end"))))
        break;
      body.push_back(statement());
    }
    --depth_;
    return body;
  }

  // A block with a scope of its own: names that are set in it end with it.
  std::vector<Statement> scoped_block(std::initializer_list<std::string_view> ends) {
    ++scopes_;
    std::vector<Statement> body = block(ends);
    --scopes_;
    return body;
  }

  // The same, which Jinja runs apart from the loop around it: neither break nor continue may leave it.
  std::vector<Statement> captured_block(std::string_view end) {
    const int outer_loops = std::exchange(loops_, 0);
    std::vector<Statement> body = scoped_block({end});
    loops_ = outer_loops;
    end_tag(end);
    return body;
  }

  Statement statement() {
    if (is(TokenKind::text)) {
      return [text = Text(take().text)](Scope&, Output& out) {
        out.text += text;
        return Flow::next;
      };
    }
    const int64_t line = here().line;
    const bool prints = accept(TokenKind::print_begin);
    Statement body = prints ? print() : tag();
    return [line, body](Scope& scope, Output& out) { return placed(line, [&] { return body(scope, out); }); };
  }

  Statement print() {
    Expression value = tuple();
    expect(TokenKind::print_end);
    return [value](Scope& scope, Output& out) {
      out.text += as_text(value(scope));
      if (out.text.size() > most_bytes) throw Error("the text becomes too long");
      return Flow::next;
    };
  }

  Statement tag() {
    expect(TokenKind::tag_begin);
    const std::string name = expect(TokenKind::name).text;
    if (name == "if") return condition();
    if (name == "for") return loop();
    if (name == "set") return set();
    if (name == "macro") return macro();
    if (name == "generation") return generation();
    if ((name == "break" || name == "continue") && loops_ > 0) {
      expect(TokenKind::tag_end);
      return [flow = name == "break" ? Flow::break_loop : Flow::next_round](Scope&, Output&) { return flow; };
    }
    fail(fmt::format("the tag '{}' is not supported here", name));
  }

  void end_tag(std::string_view name) {
    expect(TokenKind::tag_begin);
    expect(TokenKind::name, name);
    expect(TokenKind::tag_end);
  }

  // Behind "if" or "elif".
  Statement condition() {
    Expression value = expression();
    expect(TokenKind::tag_end);
    std::vector<Statement> then = block({"elif", "else", "endif"}), other;
    if (after(1).text == "elif") {
      take(), take();
      other = {condition()};
    } else {
      if (after(1).text == "else") {
        end_tag("else");
        other = block({"endif"});
      }
      end_tag("endif");
    }
    return [value, then, other](Scope& scope, Output& out) {
      return run_all(is_true(value(scope)) ? then : other, scope, out);
    };
  }

  std::vector<std::string> names() {
    const bool bracket = accept(TokenKind::sign, "(");
    std::vector<std::string> all{expect(TokenKind::name).text};
    while (accept(TokenKind::sign, ",")) all.push_back(expect(TokenKind::name).text);
    if (bracket) expect(TokenKind::sign, ")");
    if (std::ranges::find(all, "loop") != all.end()) fail("'loop' cannot be set");
    return all;
  }

  Statement loop() {
    const std::vector<std::string> own = names();
    expect(TokenKind::name, "in");
    Expression list = without_condition();  // of the loop's own "if"
    Expression filter;
    if (accept(TokenKind::name, "if")) filter = expression();
    if (is(TokenKind::name, "recursive")) fail("recursive loops are not supported");
    expect(TokenKind::tag_end);
    ++loops_;
    std::vector<Statement> body = scoped_block({"else", "endfor"}), other;
    --loops_;
    if (after(1).text == "else") {
      end_tag("else");
      other = scoped_block({"endfor"});
    }
    end_tag("endfor");
    return [own, list, filter, body, other](Scope& scope, Output& out) {
      const List items = kept(elements(list(scope)), own, filter, scope);
      if (items.empty()) {
        Scope within(&scope);
        return run_all(other, within, out);
      }
      for (size_t i = 0; i < items.size(); ++i) {
        scope.count_step();
        Scope round(&scope);
        assign(round, own, items[i]);
        round.set("loop", loop_of(items, i));
        if (run_all(body, round, out) == Flow::break_loop) break;
      }
      return Flow::next;
    };
  }

  static List kept(List all, const std::vector<std::string>& names, const Expression& filter, Scope& scope) {
    if (filter)
      std::erase_if(all, [&](const Value& item) {
        Scope round(&scope);
        assign(round, names, item);
        return !is_true(filter(round));
      });
    return all;
  }

  Statement set() {
    if (here().kind == TokenKind::name && after(1).text == ".") {
      const std::string space = take().text;
      take();
      const std::string name = expect(TokenKind::name).text;
      expect(TokenKind::sign, "=");
      return set_attribute(space, name);
    }
    const std::vector<std::string> own = names();
    if (accept(TokenKind::tag_end)) return set_block(own);
    expect(TokenKind::sign, "=");
    Expression value = tuple();
    expect(TokenKind::tag_end);
    return [own, value](Scope& scope, Output&) {
      assign(scope, own, value(scope));
      return Flow::next;
    };
  }

  Statement set_attribute(const std::string& space, const std::string& name) {
    Expression value = tuple();
    expect(TokenKind::tag_end);
    return [space, name, value](Scope& scope, Output&) {
      const Value* const found = scope.find(space);
      if (found == nullptr || !found->is_object() || found->members().kind != Map::Kind::name_space)
        throw Error(fmt::format("'{}' is no namespace", space));
      Map& map = found->members();
      map.set(name, value(scope));
      return Flow::next;
    };
  }

  Statement set_block(const std::vector<std::string>& own) {
    std::vector<Statement> body = captured_block("endset");
    return [own, body](Scope& scope, Output&) {
      Output inner{.captured = true};
      Scope within(&scope);
      run_all(body, within, inner);
      assign(scope, own, std::move(inner.text));
      return Flow::next;
    };
  }

  Statement macro() {
    if (scopes_ > 0) fail("a macro in a loop, a macro or a block is not supported");
    const std::string name = expect(TokenKind::name).text;
    expect(TokenKind::sign, "(");
    std::vector<std::pair<std::string, Expression>> parameters;  // an expression: the default
    while (!accept(TokenKind::sign, ")")) {
      parameters.emplace_back(expect(TokenKind::name).text, nullptr);
      if (accept(TokenKind::sign, "=")) parameters.back().second = expression();
      if (!is(TokenKind::sign, ")")) expect(TokenKind::sign, ",");
    }
    expect(TokenKind::tag_end);
    std::vector<Statement> body = captured_block("endmacro");
    return [name, parameters, body](Scope& scope, Output&) {
      scope.set(name, Function([root = &scope.root(), name, parameters, body](const Arguments& given) {
                  return call_macro(*root, name, parameters, body, given);
                }));
      return Flow::next;
    };
  }

  static Value call_macro(Scope& root, const std::string& name,
                          const std::vector<std::pair<std::string, Expression>>& parameters,
                          const std::vector<Statement>& body, const Arguments& given) {
    static thread_local int depth = 0;
    struct Depth {
      Depth() { ++depth; }
      ~Depth() { --depth; }
    } const call;
    if (depth > 50) throw Error(fmt::format("the macro '{}' calls itself too often", name));
    if (given.values.size() > parameters.size()) throw Error(fmt::format("too many arguments of '{}'", name));
    for (const auto& [key, value] : given.named) {
      if (std::ranges::none_of(parameters, [&](const auto& parameter) { return parameter.first == key; }))
        throw Error(fmt::format("'{}' has no argument '{}'", name, key));
    }
    Scope own(&root);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& [parameter, otherwise] = parameters[i];
      const Value* const found = given.find(i, parameter);
      own.set(parameter, found != nullptr ? *found
                         : otherwise      ? otherwise(own)
                                          : Value(Undefined{fmt::format("'{}'", parameter)}));
    }
    Output out{.captured = true};
    run_all(body, own, out);
    return std::move(out.text);
  }

  Statement generation() {
    expect(TokenKind::tag_end);
    std::vector<Statement> body = captured_block("endgeneration");
    return [body](Scope& scope, Output& out) {
      if (out.captured) throw Error("a generation block within a macro or a set block is not supported");
      const size_t begin = out.text.size();
      Scope within(&scope);
      run_all(body, within, out);
      if (out.text.size() > begin) out.generations.push_back({begin, out.text.size()});
      return Flow::next;
    };
  }

  static constexpr size_t most_bytes = size_t{1} << 28;

  int loops_ = 0;   // around the tag
  int scopes_ = 0;  // around the tag, without the root
  int depth_ = 0;   // of blocks
};

}  // namespace

struct Template::Code {
  std::vector<Statement> body;
};

Template::Template(std::string_view source)
    : code_(std::make_shared<const Code>(Code{Parser(tokenize(source)).all()})) {}

Rendered Template::render(const Map& variables) const {
  Scope names(nullptr);
  for (const auto& [name, function] : functions().items) names.set(name, function);
  for (const auto& [name, value] : variables.items) names.set(name, value);
  Output out;
  run_all(code_->body, names, out);
  return {.text = std::move(out.text), .generations = std::move(out.generations)};
}

}  // namespace pptrain::jinja
