// Answers that the program gives without LibTorch, whose loading takes half a second. The build asks the
// whole program for these texts once, and writes them into the small one that users start.
#pragma once

#include <span>
#include <string>

namespace CLI {
class App;
}

namespace pptrain::app {

struct QuickAnswer {
  const char* arguments;  // of the command line, separated by a space
  const char* machine;    // that the text describes, as by this_machine(); "": none
  const char* text;
};

// Defined in a file that the build writes.
std::span<const QuickAnswer> quick_answers();

// The machine's properties that `pptrain --version` depends on: the processor and its instruction sets,
// cores, environment variables. "" with a GPU's driver, which has more properties.
std::string this_machine();

// Whether NVIDIA's driver can be loaded. CUDA's runtime looks for it in the same way.
bool has_gpu_driver();

// C++ that defines quick_answers(). `program`: its options and subcommands; `version`: what --version prints.
std::string quick_answers_source(CLI::App& program, const std::string& version);

}  // namespace pptrain::app
