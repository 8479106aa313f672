// With PPTRAIN_ISA set, ends the program before its first case if the run would be useless: the processor
// lacks the instruction set, or uses it anyway.
#include <cstdio>
#include <cstdlib>
#include <string>

#define CATCH_CONFIG_EXTERNAL_INTERFACES  // listeners of version 2

#include "core/base/error.h"
#include "core/kernels/cpu/loops.h"
#include "test/support/catch.h"

namespace {

namespace cpu = pptrain::kernels::cpu;

constexpr int not_run = 77;  // CMakeLists.txt gives it to ctest

std::string reason_not_to_run(const std::string& isa) {
  try {
    if (&cpu::choose_loops(isa) == &cpu::choose_loops(""))
      return "core_kernels runs " + isa + ", the best of this processor";
    return "";
  } catch (const pptrain::UsageError& error) {
    return error.what();
  }
}

using Listener = pptrain::test::EventListener;

struct IsaListener : Listener {
  using Listener::Listener;
  void testRunStarting(const Catch::TestRunInfo& /*run*/) override {
    const char* const isa = std::getenv("PPTRAIN_ISA");
    if (isa == nullptr) return;
    const std::string reason = reason_not_to_run(isa);
    if (reason.empty()) return;
    std::printf("not run: %s\n", reason.c_str());
    std::fflush(stdout);
    std::_Exit(not_run);
  }
};

CATCH_REGISTER_LISTENER(IsaListener)

}  // namespace
