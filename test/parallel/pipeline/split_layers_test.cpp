// The expected splits are those that KempnerForge, xorl and d9d document or test.
#include "parallel/pipeline/split_layers.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "test/support/catch.h"

using namespace pptrain;
using pipeline::compute_layer_assignment;
using pipeline::explicit_layer_assignment;
using pipeline::LayerAssignment;
using pipeline::layout_layer_assignment;

namespace {

std::vector<int> counts(const LayerAssignment& assignment) {
  std::vector<int> result;
  int next = 0;
  for (const auto& [start, end] : assignment) {
    CHECK(start == next);
    next = end;
    result.push_back(end - start);
  }
  return result;
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

// The lowest maximal load over all splits in which every stage has a layer, by trying all of them.
double best_largest_load(int layers, int stages, double first, double last) {
  if (stages == 1) return layers + first + last;
  double best = 1e9;
  for (int n = 1; n <= layers - (stages - 1); ++n) {
    best = std::min(best, std::max(n + first, best_largest_load(layers - n, stages - 1, 0, last)));
  }
  return best;
}

}  // namespace

TEST_CASE("an even split gives the remainder to earlier stages") {
  CHECK(counts(compute_layer_assignment(32, 3)) == std::vector<int>{11, 11, 10});
  CHECK(compute_layer_assignment(80, 4) == LayerAssignment{{0, 20}, {20, 40}, {40, 60}, {60, 80}});
  CHECK(compute_layer_assignment(10, 3) == LayerAssignment{{0, 4}, {4, 7}, {7, 10}});
  CHECK(compute_layer_assignment(7, 2) == LayerAssignment{{0, 4}, {4, 7}});
  CHECK(compute_layer_assignment(5, 1) == LayerAssignment{{0, 5}});
  CHECK(compute_layer_assignment(34, 4) == LayerAssignment{{0, 9}, {9, 18}, {18, 26}, {26, 34}});
}

TEST_CASE("embedding and head count as layers") {
  CHECK(counts(compute_layer_assignment(36, 2, 1, 1)) == std::vector<int>{18, 18});
  CHECK(counts(compute_layer_assignment(24, 4, 1, 1)) == std::vector<int>{6, 7, 6, 5});
  CHECK(counts(compute_layer_assignment(30, 4, 0, 2)) == std::vector<int>{8, 8, 8, 6});
  CHECK(counts(compute_layer_assignment(34, 4, 0, 0)) == std::vector<int>{9, 9, 8, 8});
  CHECK(counts(compute_layer_assignment(10, 1, 1, 2)) == std::vector<int>{10});
  CHECK(counts(compute_layer_assignment(8, 4, 2, 2)) == std::vector<int>{1, 3, 3, 1});
  // The head of the benchmark job costs about 6 of its blocks.
  CHECK(counts(compute_layer_assignment(8, 2, 0, 6)) == std::vector<int>{7, 1});
  CHECK(counts(compute_layer_assignment(32, 4, 0, 0.1)) == std::vector<int>{8, 8, 8, 8});
}

TEST_CASE("a stage without a layer is an error that says what to do") {
  CHECK(error_of([] { compute_layer_assignment(4, 8); }) ==
        "4 layers cannot fill 8 stages: every stage needs a layer. Use at most 4 stages.");
  CHECK_THROWS_AS(compute_layer_assignment(2, 4, 1, 1), UsageError);
  CHECK_THROWS_AS(compute_layer_assignment(0, 4, 1, 1), UsageError);
  CHECK(error_of([] { compute_layer_assignment(13, 6, 2, 3); }).find("leave stage 5 without a layer") !=
        std::string::npos);
  CHECK(error_of([] { compute_layer_assignment(4, 2, 5, 0); }).find("leave stage 0 without") !=
        std::string::npos);
  CHECK_THROWS_AS(compute_layer_assignment(4, 0), UsageError);
  CHECK_THROWS_AS(compute_layer_assignment(4, 2, -1, 0), UsageError);
  CHECK_THROWS_AS(compute_layer_assignment(4, 2, 0, std::numeric_limits<double>::quiet_NaN()), UsageError);
}

TEST_CASE("no other split has a smaller largest load") {
  for (int layers = 1; layers <= 9; ++layers) {
    for (int stages = 1; stages <= std::min(layers, 4); ++stages) {
      for (const double first : {0.0, 0.5, 1.0, 2.0}) {
        for (const double last : {0.0, 0.3, 1.0, 3.5}) {
          LayerAssignment split;
          try {
            split = compute_layer_assignment(layers, stages, first, last);
          } catch (const UsageError&) {
            // Refused only if a weight alone fills its stage: with one layer it has the maximal load.
            CHECK(best_largest_load(layers, stages, first, last) == Approx(std::max(first, last) + 1));
            continue;
          }
          double largest = 0;
          const auto sizes = counts(split);
          for (size_t i = 0; i < sizes.size(); ++i) {
            largest = std::max(largest, sizes[i] + (i == 0 ? first : 0) + (i + 1 == sizes.size() ? last : 0));
          }
          CHECK(largest == Approx(best_largest_load(layers, stages, first, last)));
        }
      }
    }
  }
}

TEST_CASE("pinned ends") {
  CHECK(counts(layout_layer_assignment(8, 4, "1|*|*|1")) == std::vector<int>{1, 3, 3, 1});
  CHECK(counts(layout_layer_assignment(10, 4, "2|*|*|1")) == std::vector<int>{2, 4, 3, 1});
  CHECK(counts(layout_layer_assignment(8, 2, "7|1")) == std::vector<int>{7, 1});
  CHECK(counts(layout_layer_assignment(5, 4, "2|*|*|1")) == std::vector<int>{2, 1, 1, 1});
  CHECK_THROWS_AS(layout_layer_assignment(8, 2, "6|1"), UsageError);
  CHECK_THROWS_AS(layout_layer_assignment(4, 4, "2|*|*|1"), UsageError);
  CHECK_THROWS_AS(layout_layer_assignment(8, 4, "0|*|*|1"), UsageError);
}

TEST_CASE("a layout string") {
  const auto split = [](int layers, int stages, const std::string& layout) {
    return counts(layout_layer_assignment(layers, stages, layout));
  };
  CHECK(split(8, 4, "1|*|*|1") == std::vector<int>{1, 3, 3, 1});
  CHECK(split(9, 4, "*|*|*|1") == std::vector<int>{3, 3, 2, 1});
  CHECK(split(8, 2, "7|1") == std::vector<int>{7, 1});
  CHECK(split(8, 3, " Et t | t*3, | tt t L ") == std::vector<int>{2, 3, 3});
  CHECK(split(10, 5, "Et|(tt|)*2tt|ttt L") == std::vector<int>{1, 2, 2, 2, 3});
  CHECK(split(61, 16, "Et*3|(tt*3|)*14ttL") ==
        std::vector<int>{3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 2});
  const std::vector<std::string> wrong = {"",
                                          "|",
                                          "8",
                                          "4|5",
                                          "4|4|0",
                                          "3|*|5",
                                          "tE|ttttttt",
                                          "t|Et|tttttt",
                                          "tL|t*7",
                                          "(4|4",
                                          "4)|4",
                                          "((4|)*2)*1",
                                          "(4|)4",
                                          "4|x",
                                          "4|4t",
                                          "t*|t*7",
                                          "t*99999999999|t",
                                          "**|4",
                                          "(t)*99999|t"};
  for (const std::string& layout : wrong) {
    INFO(layout);
    CHECK_THROWS_AS(layout_layer_assignment(8, 2, layout), UsageError);
  }
}

TEST_CASE("an explicit list") {
  const std::vector<int64_t> list = {7, 1};
  CHECK(explicit_layer_assignment(8, 2, list) == LayerAssignment{{0, 7}, {7, 8}});
  CHECK(error_of([&] { explicit_layer_assignment(8, 3, list); }) ==
        "layers per stage [7, 1]: 2 numbers for 3 stages; give one per stage.");
  CHECK(error_of([&] { explicit_layer_assignment(9, 2, list); }) ==
        "layers per stage [7, 1]: these are 8 layers, but the model has 9.");
  const std::vector<int64_t> zero = {8, 0};
  CHECK(error_of([&] { explicit_layer_assignment(8, 2, zero); }) ==
        "layers per stage [8, 0]: every stage holds from 1 to all 8 layers, not 0.");
  const std::vector<int64_t> huge = {std::numeric_limits<int64_t>::max(), 9};
  CHECK_THROWS_AS(explicit_layer_assignment(8, 2, huge), UsageError);
}
