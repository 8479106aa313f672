#include "core/metrics/terminal_sinks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

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

TEST_CASE("means of a long run take no more memory than those of a short one") {
  metrics::RunningMeans means;
  double sum = 0;
  for (int i = 0; i < 100'000; ++i) {
    means.add(i);
    sum += i;
    if (i % 100 == 0) means.add(std::numeric_limits<double>::quiet_NaN());
  }
  const std::vector<double> values = means.means();
  CHECK(values.size() <= 128);
  CHECK(values.size() >= 64);
  CHECK(means.first() == 0);
  CHECK(means.last() == 99'999);
  CHECK(std::ranges::is_sorted(values));
  CHECK(values.front() < 100'000.0 / 64);
  // All groups but the last are equally large.
  const double each = values[1] - values[0];
  for (size_t i = 2; i + 1 < values.size(); ++i) CHECK(values[i] - values[i - 1] == Approx(each));
}

TEST_CASE("the line of losses fits its columns") {
  metrics::RunningMeans losses;
  CHECK(metrics::loss_line(losses, 60, true).empty());
  losses.add(5.63241);
  CHECK(metrics::loss_line(losses, 60, true).empty());
  for (int i = 1; i < 500; ++i) losses.add(1.5 + 4.0 / i);
  const std::string line = metrics::loss_line(losses, 51, true);
  CHECK(columns_of(line) == 51);
  CHECK(line.starts_with("loss 5.6324 █"));
  CHECK(line.ends_with(" 1.5080"));
  CHECK(metrics::loss_line(losses, 15, false).empty());
}

TEST_CASE("locales say whether they take UTF-8") {
  CHECK(metrics::is_utf8_locale(nullptr, nullptr, "en_US.UTF-8"));
  CHECK(metrics::is_utf8_locale("", nullptr, "de_DE.utf8"));
  CHECK_FALSE(metrics::is_utf8_locale("C", nullptr, "en_US.UTF-8"));
  CHECK_FALSE(metrics::is_utf8_locale(nullptr, "POSIX", "en_US.UTF-8"));
  CHECK_FALSE(metrics::is_utf8_locale(nullptr, nullptr, nullptr));
}
