#include "core/base/ordered_work.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "test/support/catch.h"

using pptrain::OrderedWork;

TEST_CASE("results come in order, and few wait, whatever the threads") {
  for (const int threads : {1, 2, 7}) {
    int drawn = 0;
    std::atomic<int> ahead = 0, most = 0;
    std::vector<std::string> taken;
    OrderedWork<int, std::string>(
        [&]() -> std::optional<int> { return drawn < 500 ? std::optional(drawn++) : std::nullopt; },
        [&](const int& item) {
          const int now = ++ahead;
          for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
          }
          if (item % 13 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
          return std::to_string(item);
        },
        [&](const std::string& result) {
          --ahead;
          taken.push_back(result);
        })
        .run(threads);
    REQUIRE(taken.size() == 500);
    for (int i = 0; i < 500; ++i) CHECK(taken[static_cast<size_t>(i)] == std::to_string(i));
    CHECK(most <= 6 * threads);
  }
}

TEST_CASE("the first failure ends the work, wherever it comes from") {
  for (const int where : {0, 1, 2}) {
    for (const int threads : {1, 4}) {
      int drawn = 0, taken = 0;
      const auto fail_at = [&](int place, int item) {
        if (place == where && item == 40) throw std::runtime_error("forty");
      };
      OrderedWork<int, int> work(
          [&]() -> std::optional<int> {
            fail_at(0, drawn);
            return drawn < 1000 ? std::optional(drawn++) : std::nullopt;
          },
          [&](const int& item) {
            fail_at(1, item);
            return item;
          },
          [&](const int& item) {
            fail_at(2, item);
            ++taken;
          });
      CHECK_THROWS_WITH(work.run(threads), "forty");
      CHECK(taken <= 40);
      CHECK(drawn < 1000);
    }
  }
}
