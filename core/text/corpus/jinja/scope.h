// What the parser makes of a template, and what that code works on.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text/corpus/jinja/template.h"

namespace pptrain::jinja {

// The names of a block, before those around it.
class Scope {
 public:
  explicit Scope(Scope* around) : around_(around), root_(around != nullptr ? around->root_ : this) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  const Value* find(std::string_view name) const;
  void set(const std::string& name, Value value) { names_.set(name, std::move(value)); }
  Scope& root() { return *root_; }
  // Called by loops and calls. Throws Error once a template has done more than any honest one does.
  void count_step(int64_t steps = 1);

 private:
  Scope* around_;
  Scope* root_;
  Map names_;
  int64_t steps_ = 0;  // of the root
};

struct Output {
  Text text = {};
  std::vector<Range> generations = {};
  bool captured = false;  // of a macro, or the value of a set block
};

enum class Flow { next, break_loop, next_round };

using Expression = std::function<Value(Scope&)>;
using Statement = std::function<Flow(Scope&, Output&)>;

}  // namespace pptrain::jinja
