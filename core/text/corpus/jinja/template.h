// Chat templates: the part of Jinja that models' templates are written in.
//
// Expressions with all operators, conditions, slices, lists and dicts; if, for (with else, a condition, break
// and continue), set (also of a block and of a namespace), macro (in no block but if), generation; the
// filters, tests, methods and functions of builtins.cpp. All else is an error with its line: if this renders
// a text, it is Jinja's text, with the settings of transformers (trim_blocks, lstrip_blocks). Exception:
// upper and lower case of letters outside of ASCII are refused.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "core/text/corpus/jinja/value.h"

namespace pptrain::jinja {

struct Range {
  size_t begin = 0, end = 0;  // bytes
};

struct Rendered {
  Text text;
  std::vector<Range> generations;  // what {% generation %} blocks wrote, ascending
};

// Immutable: any number of threads may render at once.
class Template {
 public:
  // Throws Error with the line for what is wrong or not supported.
  explicit Template(std::string_view source);

  // Throws Error with the line if the template raises an exception, or would do so in Jinja.
  Rendered render(const Map& variables) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace pptrain::jinja
