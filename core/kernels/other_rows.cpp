#include "core/kernels/other_rows.h"

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace pptrain::kernels {
namespace {

struct Asked {
  int64_t most = 0;
  std::set<std::tuple<std::string_view, at::ScalarType, int64_t, int64_t>> taken{};
};

thread_local Asked* innermost = nullptr;

}  // namespace

void with_other_rows(int64_t most, c10::function_ref<void()> work) {
  Asked asked{.most = most};
  Asked* const outer = std::exchange(innermost, &asked);
  const auto end = c10::make_scope_exit([&] { innermost = outer; });
  work();
}

std::vector<int64_t> take_other_rows(std::string_view kernel, at::ScalarType type, int64_t out, int64_t in) {
  constexpr int64_t per_doubling = 32;
  std::vector<int64_t> numbers;
  if (innermost == nullptr || !innermost->taken.emplace(kernel, type, out, in).second) return numbers;
  for (int64_t rows = 1; rows <= innermost->most; rows += std::max<int64_t>(1, rows / per_doubling))
    numbers.push_back(rows);
  return numbers;
}

}  // namespace pptrain::kernels
