// The band of losses against sorting, and which losses leave it.
#include "core/fault/loss_watch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "test/support/catch.h"

using namespace pptrain::fault;
using pptrain::test::contains_text;

namespace {

double sorted_median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double limit_by_sorting(const std::vector<double>& losses, double width) {
  const double median = sorted_median(losses);
  std::vector<double> distances;
  for (const double loss : losses) distances.push_back(std::abs(loss - median));
  return median + width * std::max(1.4826 * sorted_median(distances), 0.001 * std::abs(median));
}

}  // namespace

TEST_CASE("the watch counts what a plain reading of its rule counts, and goes on from its state alike") {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int run = 0; run < 200; ++run) {
    const int64_t window = 8 + run % 13, steps = 3 + run % 4;
    const double width = 1 + 0.3 * (run % 7);
    DivergenceWatch whole(steps, window, width), resumed(steps, window, width);
    std::vector<double> inside;
    int64_t above = 0, since = 0;
    for (int64_t step = 1; step <= 120 && above < steps; ++step) {
      const double loss = 2 + uniform(random) + (uniform(random) < 0.2 ? 2 * uniform(random) : 0);
      const std::vector<double> last(
          inside.size() > static_cast<size_t>(window) ? inside.end() - window : inside.begin(), inside.end());
      if (static_cast<int64_t>(last.size()) == window && loss > limit_by_sorting(last, width)) {
        if (above++ == 0) since = step;
      } else {
        inside.push_back(loss);
        above = since = 0;
      }
      whole.take(step, loss);
      resumed.take(step, loss);
      CAPTURE(run, step, window, width, loss);
      REQUIRE(whole.above() == above);
      REQUIRE(whole.since() == since);
      REQUIRE(whole.diverged() == (above >= steps));
      REQUIRE(resumed.recent() == whole.recent());
      REQUIRE(resumed.above() == above);
      if (step % 7 == 0 && !whole.diverged()) {
        DivergenceWatch next(steps, window, width);
        next.restore(resumed.recent(), resumed.above(), resumed.since());
        resumed = next;
      }
    }
  }
}

TEST_CASE("a loss that rises for good is found, a spike and a loss that is no number are not") {
  DivergenceWatch watch(5, 10, 6);
  int64_t step = 0;
  const auto take = [&](double loss) { watch.take(++step, loss); };
  for (int i = 0; i < 30; ++i) take(2 + 0.01 * (i % 5));
  for (int i = 0; i < 4; ++i) take(9);
  CHECK(watch.above() > 0);
  take(std::numeric_limits<double>::quiet_NaN());
  CHECK(watch.above() == 4);  // AnomalyGuard handles this one
  take(2.02);
  CHECK(watch.above() == 0);
  for (int i = 0; i < 5; ++i) take(2.5 + i);
  CHECK(watch.diverged());
  CHECK(watch.since() == 37);
  CHECK_THAT(watch.describe(), contains_text("since step 37: 6.5000 now") && contains_text("median 2.0200"));
}

TEST_CASE("losses that do not differ have a band of their own") {
  DivergenceWatch watch(1, 8, 6);
  for (int64_t step = 1; step <= 8; ++step) watch.take(step, 2.0);
  watch.take(9, 2.011);
  CHECK(watch.above() == 0);
  watch.take(10, 2.013);
  CHECK(watch.diverged());
}

TEST_CASE("going on from a state") {
  const auto go_on = [](DivergenceWatch& watch) { watch.restore({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 5, 40); };
  SECTION("of a run that diverged gives it as many steps again") {
    DivergenceWatch watch(5, 10, 6);
    go_on(watch);
    CHECK(watch.above() == 0);
    CHECK(watch.recent().size() == 10);
  }
  SECTION("with a shorter window takes the newest losses") {
    DivergenceWatch watch(9, 8, 6);
    go_on(watch);
    CHECK(watch.recent() == std::vector<double>{3, 4, 5, 6, 7, 8, 9, 10});
    CHECK(watch.above() == 5);
  }
  SECTION("without a watch keeps nothing") {
    DivergenceWatch watch(0, 8, 6);
    go_on(watch);
    watch.take(41, 1e9);
    CHECK(watch.recent().empty());
    CHECK_FALSE(watch.diverged());
  }
}
