#include "core/metrics/terminal_sinks.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "test/support/captured_log.h"
#include "test/support/catch.h"

using namespace pptrain;

namespace {

// Characters of UTF-8.
size_t columns_of(const std::string& text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

}  // namespace

TEST_CASE("a sparkline has the lowest value lowest and the highest highest") {
  const std::vector<double> falling = {8, 7, 6, 5, 4, 3, 2, 1};
  CHECK(metrics::sparkline(falling, 20, true) == "█▇▆▅▄▃▂▁");
  CHECK(metrics::sparkline(falling, 20, false) == "#%*+=-._");
  CHECK(metrics::sparkline(falling, 4, false) == "#*-_");
  CHECK(metrics::sparkline(std::vector<double>{2, 2, 2}, 20, false) == "___");
  CHECK(metrics::sparkline({}, 20, true).empty());
  CHECK(metrics::sparkline(falling, 0, true).empty());
  std::vector<double> many(1000);
  std::iota(many.begin(), many.end(), 0.0);
  for (size_t columns = 1; columns < 60; ++columns)
    CHECK(columns_of(metrics::sparkline(many, columns, true)) == columns);
}

TEST_CASE("the line of losses fits its columns") {
  std::vector<double> losses = {5.63241};
  CHECK(metrics::loss_line(5.63241, losses, 5.63241, 60, true).empty());
  for (int i = 1; i < 500; ++i) losses.push_back(1.5 + 4.0 / i);
  const std::string line = metrics::loss_line(losses.front(), losses, losses.back(), 51, true);
  CHECK(columns_of(line) == 51);
  CHECK(line.starts_with("loss 5.6324 █"));
  CHECK(line.ends_with(" 1.5080"));
  CHECK(metrics::loss_line(losses.front(), losses, losses.back(), 15, false).empty());
}

TEST_CASE("a run's end shows the losses of a long run in groups of equal size, without those not finite") {
  const test::CapturedLog log;
  setenv("LC_ALL", "C", 1);
  metrics::make_loss_curve_sink()->end();
  const auto sink = metrics::make_loss_curve_sink();
  for (int i = 0; i < 100'000; ++i) {
    sink->step({.loss = static_cast<double>(i)});
    if (i % 100 == 0) sink->step({.loss = std::numeric_limits<double>::quiet_NaN()});
  }
  sink->end();
  unsetenv("LC_ALL");
  const auto lines = log.lines();
  REQUIRE(lines.size() == 1);  // a run without losses shows nothing
  CHECK(lines[0].starts_with("loss 0.0000 _"));
  CHECK(lines[0].ends_with("# 99999.0000"));
  const std::string levels = "_.-=+*%#";
  const size_t begin = lines[0].find('_'), end = lines[0].rfind('#');
  std::vector<size_t> heights;
  for (size_t i = begin; i <= end; ++i) heights.push_back(levels.find(lines[0][i]));
  CHECK(std::ranges::is_sorted(heights));
  for (size_t level = 0; level < levels.size(); ++level)
    CHECK(std::abs(std::ranges::count(heights, level) * 8 - static_cast<int>(heights.size())) <= 8);
}

TEST_CASE("locales say whether they take UTF-8") {
  CHECK(metrics::is_utf8_locale(nullptr, nullptr, "en_US.UTF-8"));
  CHECK(metrics::is_utf8_locale("", nullptr, "de_DE.utf8"));
  CHECK_FALSE(metrics::is_utf8_locale("C", nullptr, "en_US.UTF-8"));
  CHECK_FALSE(metrics::is_utf8_locale(nullptr, "POSIX", "en_US.UTF-8"));
  CHECK_FALSE(metrics::is_utf8_locale(nullptr, nullptr, nullptr));
}
