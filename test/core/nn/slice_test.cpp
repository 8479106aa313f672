// Slices of parameters as runs of elements, compared with a walk over all elements.
#include "core/nn/slice.h"

#include <numeric>
#include <vector>

#include "core/base/error.h"
#include "test/support/catch.h"

namespace pptrain::nn {
namespace {

// The global places of the slice's elements, found one by one in a walk over the box.
std::vector<int64_t> places(const SliceShape& s) {
  std::vector<int64_t> all;
  std::vector<int64_t> at(s.box.size(), 0);
  int64_t count = 1;
  for (const int64_t n : s.box) count *= n;
  for (int64_t i = 0; i < count; ++i) {
    int64_t place = 0;
    for (size_t d = 0; d < at.size(); ++d) place = place * s.global[d] + s.offset[d] + at[d];
    all.push_back(place);
    for (size_t d = at.size(); d-- > 0;) {
      if (++at[d] < s.box[d]) break;
      at[d] = 0;
    }
  }
  return {all.begin() + s.begin, all.begin() + s.end};
}

void check_runs(const SliceShape& slice) {
  std::vector<int64_t> found;
  int64_t previous_end = -1;
  for (const ElementRun& run : element_runs(slice)) {
    CHECK(run.local == static_cast<int64_t>(found.size()));
    CHECK(run.length > 0);
    CHECK(run.global > previous_end);  // a run that begins at the end would belong to the one before
    previous_end = run.global + run.length;
    for (int64_t i = 0; i < run.length; ++i) found.push_back(run.global + i);
  }
  CHECK(found == places(slice));
}

}  // namespace

TEST_CASE("a whole parameter is one run") {
  const SliceShape whole = whole_slice({3, 4, 5});
  CHECK(whole.is_whole());
  CHECK(element_runs(whole) == std::vector<ElementRun>{{0, 0, 60}});
  CHECK(element_runs(whole_slice({7})) == std::vector<ElementRun>{{0, 0, 7}});
}

TEST_CASE("rows are one run, columns one run a row") {
  const SliceShape rows{.global = {8, 6}, .offset = {2, 0}, .box = {3, 6}, .begin = 0, .end = 18};
  CHECK(element_runs(rows) == std::vector<ElementRun>{{12, 0, 18}});
  CHECK_FALSE(rows.is_whole());
  const SliceShape columns{.global = {3, 6}, .offset = {0, 2}, .box = {3, 2}, .begin = 0, .end = 6};
  CHECK(element_runs(columns) == std::vector<ElementRun>{{2, 0, 2}, {8, 2, 2}, {14, 4, 2}});
}

TEST_CASE("every box and range of a small tensor is its elements") {
  const std::vector<int64_t> global{2, 3, 4};
  for (int64_t a = 0; a < 2; ++a) {
    for (int64_t b = 0; b < 3; ++b) {
      for (int64_t c = 0; c < 4; ++c) {
        const std::vector<int64_t> box{2 - a, 3 - b, 4 - c};
        const int64_t size = box[0] * box[1] * box[2];
        for (int64_t begin = 0; begin <= size; begin += 2) {
          for (int64_t end = begin; end <= size; ++end) {
            check_runs({.global = global, .offset = {a, b, c}, .box = box, .begin = begin, .end = end});
          }
        }
      }
    }
  }
}

TEST_CASE("a slice outside of its parameter is refused") {
  CHECK_THROWS_AS(element_runs({.global = {4}, .offset = {2}, .box = {3}, .begin = 0, .end = 3}), Error);
  CHECK_THROWS_AS(element_runs({.global = {4}, .offset = {0}, .box = {4}, .begin = 0, .end = 5}), Error);
  CHECK_THROWS_AS(element_runs({.global = {4, 2}, .offset = {0}, .box = {4}, .begin = 0, .end = 4}), Error);
}

}  // namespace pptrain::nn
