// For a case that cannot run here: it counts neither as passed nor as failed (scripts/test_summary.py).
#pragma once

#include <cstdio>
#include <string>

#include "test/support/catch.h"

namespace pptrain::test {

// Return from the test case after it. The assertion keeps Catch2 from calling the case empty.
inline void not_run(const std::string& reason) {
  std::printf("\nnot run: %s: %s\n", Catch::getResultCapture().getCurrentTestName().c_str(), reason.c_str());
  std::fflush(stdout);
  SUCCEED(reason);
}

}  // namespace pptrain::test
