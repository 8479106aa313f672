#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace pptrain::test {

// Ends a program of the tests. LibTorch's destructors of statics take a tenth of a second, and only
// sanitizers need them.
[[noreturn]] inline void end_process(int code) {
#ifdef PPTRAIN_SANITIZED
  std::exit(code);
#else
  std::fflush(nullptr);
  _exit(code);
#endif
}

}  // namespace pptrain::test
