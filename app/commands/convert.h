// pptrain convert
#pragma once

#include <CLI/App.hpp>

#include "app/convert/convert.h"

namespace pptrain::app {

// The subcommand, whose parsing fills `arguments`.
CLI::App* add_convert(CLI::App& cli, ConvertArguments& arguments);
int run_convert(const ConvertArguments& arguments);

}  // namespace pptrain::app
