#include "core/optim/lr_schedule.h"

#include <cmath>

#include "core/base/error.h"
#include "test/support/catch.h"

using namespace pptrain;

namespace {

optim::LrSchedule schedule(const char* name, int64_t warmup, int64_t total, double decay_fraction = 0.1) {
  return {2.0,
          {.name = name, .warmup_steps = warmup, .min_lr_ratio = 0.25, .decay_fraction = decay_fraction},
          total};
}

}  // namespace

TEST_CASE("warm-up is linear from 0 to the peak", "[optim]") {
  const auto name = GENERATE("constant", "linear", "cosine", "wsd");
  const optim::LrSchedule lr = schedule(name, 4, 20);
  CHECK(lr.at(0) == Approx(0.5));
  CHECK(lr.at(1) == Approx(1.0));
  CHECK(lr.at(3) == Approx(2.0));
}

TEST_CASE("each shape follows its closed form and ends at min_lr_ratio", "[optim]") {
  CHECK(schedule("constant", 4, 20).at(19) == 2.0);
  CHECK(schedule("constant", 0, 20).at(0) == 2.0);

  const optim::LrSchedule linear = schedule("linear", 4, 20);  // from step 3 to step 19
  CHECK(linear.at(11) == Approx(2.0 * (0.25 + 0.75 * 0.5)));
  CHECK(linear.at(19) == Approx(0.5));

  const optim::LrSchedule cosine = schedule("cosine", 4, 20);
  CHECK(cosine.at(7) == Approx(2.0 * (0.25 + 0.75 * 0.5 * (1 + std::cos(M_PI * 0.25)))));
  CHECK(cosine.at(11) == Approx(2.0 * (0.25 + 0.75 * 0.5)));
  CHECK(cosine.at(19) == Approx(0.5));
  CHECK(cosine.at(25) == Approx(0.5));

  const optim::LrSchedule wsd = schedule("wsd", 4, 20, 0.25);  // falls over the last 5 steps
  CHECK(wsd.at(14) == 2.0);
  CHECK(wsd.at(15) == Approx(2.0 * (0.25 + 0.75 * 0.8)));
  CHECK(wsd.at(19) == Approx(0.5));
}

TEST_CASE("short and odd runs stay finite", "[optim]") {
  for (const char* name : {"constant", "linear", "cosine", "wsd"}) {
    CHECK(schedule(name, 0, 1).at(0) == 2.0);
    CHECK(schedule(name, 1, 1).at(0) == 2.0);
    CHECK(schedule(name, 20, 20).at(19) == 2.0);
    CHECK(schedule(name, 20, 20).at(30) == 2.0);
    CHECK(schedule(name, 40, 20).at(9) == Approx(0.5));  // a warm-up that the run does not complete
    CHECK(std::isfinite(schedule(name, 0, 0).at(0)));
  }
  CHECK(schedule("wsd", 0, 10, 0).at(9) == 2.0);
  CHECK(schedule("wsd", 0, 11, 1).at(5) == Approx(2.0 * (0.25 + 0.75 * 0.5)));
}

TEST_CASE("wsd falls in the last step of a run that is too short for its fraction", "[optim]") {
  for (const int64_t steps : {2, 4}) {  // 0.1 of 4 steps is no step
    const optim::LrSchedule wsd = schedule("wsd", 0, steps, 0.1);
    CHECK(wsd.at(steps - 2) == 2.0);
    CHECK(wsd.at(steps - 1) == Approx(0.5));
  }
  CHECK(schedule("wsd", 0, 100, 1e-9).at(99) == Approx(0.5));
  CHECK(schedule("wsd", 0, 16, 0.1).at(14) == Approx(2.0 * (0.25 + 0.75 * 0.5)));  // of 1.6 steps, 2
}

TEST_CASE("bad schedules are refused", "[optim]") {
  CHECK_THROWS_AS(schedule("triangle", 0, 10), UsageError);
  CHECK_THROWS_AS(schedule("cosine", -1, 10), UsageError);
}
