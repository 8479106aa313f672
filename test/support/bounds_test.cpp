#include "test/support/bounds.h"

#include <cmath>
#include <limits>
#include <sstream>

#include "test/support/catch.h"

using pptrain::test::Difference;
using pptrain::test::relative_error;

// test/scripts/tolerances_test.py reads what this case records.
TEST_CASE("a difference is compared with its bound", "[bounds]") {
  for (const double difference : {0.25, 0.75, 0.5}) CHECK(Difference(difference) < 1);
  CHECK(Difference(0) <= 0);
  CHECK_FALSE(Difference(0) < 0.0);
  CHECK_FALSE(Difference(2) <= 1.5F);
  const Difference nan(std::nan(""));
  CHECK_FALSE(nan <= std::numeric_limits<double>::infinity());
}

TEST_CASE("relative errors of numbers") {
  CHECK(relative_error(3, 2).value() == 0.5);
  CHECK(relative_error(-3, -2).value() == 0.5);
  CHECK(relative_error(0.5, 0).value() == 0.5);
  CHECK(std::isnan(relative_error(std::nan(""), 1).value()));
  CHECK(std::isnan(relative_error(1, std::nan("")).value()));
  std::ostringstream text;
  text << relative_error(3, 2);
  CHECK(text.str() == "0.5");
}
