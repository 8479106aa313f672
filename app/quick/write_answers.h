// The file of quick answers, which the build has the whole program write.
#pragma once

#include <CLI/App.hpp>
#include <string>

namespace pptrain::app {

// C++ that defines quick_answers(). `program`: its options and subcommands; `version`: what --version prints.
std::string quick_answers_source(CLI::App& program, const std::string& version);

}  // namespace pptrain::app
