#include "core/nn/slice.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "core/base/error.h"

namespace pptrain::nn {
namespace {

int64_t product(const std::vector<int64_t>& shape, size_t first = 0) {
  return std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(first), shape.end(), int64_t{1},
                         std::multiplies<>());
}

// Place in the global tensor of the box's element `at` (row-major).
int64_t global_place(const SliceShape& s, int64_t at) {
  int64_t place = 0;
  int64_t stride = 1;
  for (size_t i = s.global.size(); i-- > 0;) {
    place += (s.offset[i] + at % s.box[i]) * stride;
    at /= s.box[i];
    stride *= s.global[i];
  }
  return place;
}

// Elements of the box that follow each other in the global tensor: the product of its dims from the last cut
// one on.
int64_t contiguous(const SliceShape& s) {
  size_t cut = s.global.size();
  while (cut > 0 && s.box[cut - 1] == s.global[cut - 1]) --cut;
  return product(s.box, cut == 0 ? 0 : cut - 1);
}

}  // namespace

void check_slice(const SliceShape& s) {
  const size_t dims = s.global.size();
  bool inside = s.offset.size() == dims && s.box.size() == dims;
  for (size_t i = 0; inside && i < dims; ++i) {
    inside = s.offset[i] >= 0 && s.box[i] >= 0 && s.box[i] <= s.global[i] - s.offset[i];
  }
  if (!inside || s.begin < 0 || s.begin > s.end || s.end > product(s.box)) {
    throw Error(fmt::format(
        "a slice of elements [{}, {}) of the box [{}] at [{}] lies outside of its parameter [{}]", s.begin,
        s.end, fmt::join(s.box, ", "), fmt::join(s.offset, ", "), fmt::join(s.global, ", ")));
  }
}

bool SliceShape::covers_box() const {
  return begin == 0 && end == product(box);
}

bool SliceShape::is_whole() const {
  return box == global && covers_box();
}

SliceShape whole_slice(std::vector<int64_t> global) {
  SliceShape slice{.global = std::move(global), .offset = {}, .box = {}, .begin = 0, .end = 0};
  slice.offset.assign(slice.global.size(), 0);
  slice.box = slice.global;
  slice.end = product(slice.box);
  return slice;
}

std::vector<ElementRun> element_runs(const SliceShape& slice) {
  check_slice(slice);
  std::vector<ElementRun> runs;
  if (slice.numel() == 0) return runs;
  const int64_t longest = contiguous(slice);
  for (int64_t at = slice.begin; at < slice.end;) {
    const int64_t length = std::min(slice.end, (at / longest + 1) * longest) - at;
    const ElementRun run{.global = global_place(slice, at), .local = at - slice.begin, .length = length};
    if (!runs.empty() && runs.back().global + runs.back().length == run.global) {
      runs.back().length += length;
    } else {
      runs.push_back(run);
    }
    at += length;
  }
  return runs;
}

}  // namespace pptrain::nn
