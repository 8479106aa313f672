// The filters, tests, functions and methods that templates may use, as Jinja and Python have them.
#pragma once

#include <string>

#include "core/text/corpus/jinja/value.h"

namespace pptrain::jinja {

// The first argument is the value that it belongs to. Null if there is none of this name.
const Function* find_filter(const std::string& name);
const Function* find_test(const std::string& name);
// Throws Error if a value of this kind has no such method.
Value call_method(const Value& value, const std::string& name, const Arguments& arguments);
// namespace, range, raise_exception, dict.
Map functions();

}  // namespace pptrain::jinja
