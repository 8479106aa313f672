#include "core/kernels/other_rows.h"

#include <algorithm>
#include <utility>

namespace pptrain::kernels {
namespace {

thread_local OtherRows* innermost = nullptr;

}  // namespace

OtherRows::OtherRows(int64_t most) : outer_(std::exchange(innermost, this)), most_(most) {}

OtherRows::~OtherRows() {
  innermost = outer_;
}

std::vector<int64_t> OtherRows::take(std::string_view kernel, at::ScalarType type, int64_t out, int64_t in) {
  constexpr int64_t per_doubling = 32;
  std::vector<int64_t> numbers;
  if (innermost == nullptr || !innermost->taken_.emplace(kernel, type, out, in).second) return numbers;
  for (int64_t rows = 1; rows <= innermost->most_; rows += std::max<int64_t>(1, rows / per_doubling))
    numbers.push_back(rows);
  return numbers;
}

}  // namespace pptrain::kernels
