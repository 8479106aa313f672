// The manual page of the program, made from the declarations that parse its command line.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Option.hpp>
#include <string>

namespace pptrain::app {

// What an option does and its default, as --help and the manual page show it.
std::string help_with_default(const CLI::Option& option);

// pptrain(1) in roff with the macros of man(7). `version`: "pptrain 1.2.3".
std::string man_page(const CLI::App& cli, const std::string& version);

}  // namespace pptrain::app
