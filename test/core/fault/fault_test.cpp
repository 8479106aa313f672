#include <csignal>
#include <limits>

#include "core/base/error.h"
#include "core/fault/anomaly.h"
#include "core/fault/shutdown.h"
#include "test/support/catch.h"

using pptrain::fault::AnomalyGuard;
using pptrain::fault::Shutdown;

namespace {
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinite = std::numeric_limits<double>::infinity();
}  // namespace

TEST_CASE("each signal sets the flag, and only while someone listens") {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    struct sigaction before {
    }, after{};
    sigaction(signal, nullptr, &before);
    {
      const Shutdown shutdown;
      CHECK_FALSE(shutdown.requested());
      raise(signal);
      CHECK(shutdown.requested());
    }
    sigaction(signal, nullptr, &after);
    CHECK(before.sa_handler == after.sa_handler);
  }
}

TEST_CASE("steps that are not finite are skipped, and too many in a row end the run") {
  AnomalyGuard guard(2);
  CHECK(guard.accept(1.0, 2.0));
  CHECK_FALSE(guard.accept(not_a_number, 2.0));
  CHECK_FALSE(guard.accept(1.0, infinite));
  CHECK(guard.in_a_row() == 2);
  CHECK(guard.accept(1.0, 2.0));
  CHECK(guard.in_a_row() == 0);
  CHECK(guard.total() == 2);
  guard.restore(2, 9);
  CHECK_FALSE(AnomalyGuard(1).accept(not_a_number, 1.0, "elsewhere"));
  CHECK_THROWS_WITH(AnomalyGuard(0).accept(1.0, not_a_number, "the gradient of head.weight"),
                    pptrain::test::contains_text("grad norm nan; the gradient of head.weight"));
  CHECK_THROWS_WITH(guard.accept(-infinite, 1.0), pptrain::test::contains_text("max_skipped_steps = 2") &&
                                                      pptrain::test::contains_text("3 steps in a row"));
}
