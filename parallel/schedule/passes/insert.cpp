#include "parallel/schedule/passes/insert.h"

namespace pptrain::schedule {

std::vector<Action> insert(const std::vector<Action>& list, std::span<const Inserted> before,
                           std::span<const Inserted> after) {
  std::vector<Action> result;
  result.reserve(list.size() + before.size() + after.size());
  size_t computes = 0;  // so far
  const auto put_after = [&] {
    for (; !after.empty() && after.front().compute < computes; after = after.subspan(1))
      result.push_back(after.front().action);
  };
  for (const Action& action : list) {
    if (!is_send(action.kind)) put_after();
    if (is_compute(action.kind)) {
      for (; !before.empty() && before.front().compute == computes; before = before.subspan(1))
        result.push_back(before.front().action);
      ++computes;
    }
    result.push_back(action);
  }
  put_after();
  return result;
}

}  // namespace pptrain::schedule
