// What the program answers without LibTorch, whose load alone takes half a second: texts that the build asks
// of the whole program once, and writes into the small one that users start.
#pragma once

#include <span>
#include <string>

namespace CLI {
class App;
}

namespace pptrain::app {

struct QuickAnswer {
  const char* arguments;  // of the command line, a space between two
  const char* machine;    // that the text tells of, as this_machine() says; "": of none
  const char* text;
};

// Defined in a file that the build writes.
std::span<const QuickAnswer> quick_answers();

// What `pptrain --version` tells of the machine depends on this alone: the processor and its instruction
// sets, cores, variables of the environment. "" with a GPU's driver, which has more to tell.
std::string this_machine();

// C++ that defines quick_answers(). `program`: its options and subcommands; `version`: what --version prints.
std::string quick_answers_source(CLI::App& program, const std::string& version);

}  // namespace pptrain::app
