// Expressions of a template as functions of its names.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text/corpus/jinja/lexer.h"
#include "core/text/corpus/jinja/scope.h"

namespace pptrain::jinja {

// Reads tokens one after the other. Throws Error with the line for what is wrong or not supported.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& here() const { return tokens_[at_]; }
  const Token& after(size_t ahead) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is(TokenKind kind, std::string_view text = {}) const {
    return here().kind == kind && (text.data() == nullptr || here().text == text);
  }
  bool accept(TokenKind kind, std::string_view text = {});
  Token expect(TokenKind kind, std::string_view text = {});
  [[noreturn]] void fail(const std::string& what) const;

  Expression expression();  // with "a if b else c"
  Expression without_condition();
  Expression tuple();  // or one expression
  // The arguments of a call, behind "(".
  std::function<Arguments(Scope&)> arguments();

 private:
  struct Nesting;
  Expression binary(size_t level);
  Expression logical_not();
  Expression comparison();
  Expression unary(bool with_filters = true);
  Expression primary();
  Expression postfix(Expression value);
  Expression subscript(Expression value);
  Expression member(Expression value);
  Expression filtered(Expression value);
  Expression filter(Expression value);
  Expression test(Expression value);
  Expression list();
  Expression dict();
  Expression name();

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace pptrain::jinja
