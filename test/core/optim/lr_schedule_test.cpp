#include "core/optim/lr_schedule.h"

#include <cmath>

#include "test/support/catch.h"

using namespace pptrain;

namespace {

// The rates of a run by step.
auto schedule(const char* name, int64_t warmup, int64_t total, double decay_fraction = 0.1) {
  const config::LrScheduleSection section{
      .name = name, .warmup_steps = warmup, .min_lr_ratio = 0.25, .decay_fraction = decay_fraction};
  return [=](int64_t step) { return optim::learning_rate(2.0, section, total, step); };
}

}  // namespace

TEST_CASE("warm-up is linear from 0 to the peak", "[optim]") {
  const auto name = GENERATE("constant", "linear", "cosine", "wsd");
  const auto lr = schedule(name, 4, 20);
  CHECK(lr(0) == Approx(0.5));
  CHECK(lr(1) == Approx(1.0));
  CHECK(lr(3) == Approx(2.0));
}

TEST_CASE("each shape follows its closed form and ends at min_lr_ratio", "[optim]") {
  CHECK(schedule("constant", 4, 20)(19) == 2.0);
  CHECK(schedule("constant", 0, 20)(0) == 2.0);

  const auto linear = schedule("linear", 4, 20);  // from step 3 to step 19
  CHECK(linear(11) == Approx(2.0 * (0.25 + 0.75 * 0.5)));
  CHECK(linear(19) == Approx(0.5));

  const auto cosine = schedule("cosine", 4, 20);
  CHECK(cosine(7) == Approx(2.0 * (0.25 + 0.75 * 0.5 * (1 + std::cos(M_PI * 0.25)))));
  CHECK(cosine(11) == Approx(2.0 * (0.25 + 0.75 * 0.5)));
  CHECK(cosine(19) == Approx(0.5));
  CHECK(cosine(25) == Approx(0.5));

  const auto wsd = schedule("wsd", 4, 20, 0.25);  // falls over the last 5 steps
  CHECK(wsd(14) == 2.0);
  CHECK(wsd(15) == Approx(2.0 * (0.25 + 0.75 * 0.8)));
  CHECK(wsd(19) == Approx(0.5));
}

TEST_CASE("short and odd runs stay finite", "[optim]") {
  for (const char* name : {"constant", "linear", "cosine", "wsd"}) {
    CHECK(schedule(name, 0, 1)(0) == 2.0);
    CHECK(schedule(name, 1, 1)(0) == 2.0);
    CHECK(schedule(name, 20, 20)(19) == 2.0);
    CHECK(schedule(name, 20, 20)(30) == 2.0);
    CHECK(schedule(name, 40, 20)(9) == Approx(0.5));  // a warm-up that the run does not complete
    CHECK(std::isfinite(schedule(name, 0, 0)(0)));
  }
  CHECK(schedule("wsd", 0, 10, 0)(9) == 2.0);
  CHECK(schedule("wsd", 0, 11, 1)(5) == Approx(2.0 * (0.25 + 0.75 * 0.5)));
}

TEST_CASE("wsd falls in the last step of a run that is too short for its fraction", "[optim]") {
  for (const int64_t steps : {2, 4}) {  // 0.1 of 4 steps is no step
    const auto wsd = schedule("wsd", 0, steps, 0.1);
    CHECK(wsd(steps - 2) == 2.0);
    CHECK(wsd(steps - 1) == Approx(0.5));
  }
  CHECK(schedule("wsd", 0, 100, 1e-9)(99) == Approx(0.5));
  CHECK(schedule("wsd", 0, 16, 0.1)(14) == Approx(2.0 * (0.25 + 0.75 * 0.5)));  // 1.6 steps round to 2
}
