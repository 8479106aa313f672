#include "parallel/schedule/generators/interleaved_order.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "core/base/error.h"

namespace pptrain::schedule {

int microbatches_per_round(int ranks, int microbatches) {
  const int rounds = std::max(1, microbatches / ranks);
  return microbatches % rounds == 0 ? microbatches / rounds : 0;
}

void check_rounds(const Schedule& s) {
  if (microbatches_per_round(s.ranks, s.microbatches) > 0) return;
  int below = s.microbatches;
  int above = s.microbatches;
  while (microbatches_per_round(s.ranks, below) == 0) --below;
  while (microbatches_per_round(s.ranks, above) == 0) ++above;
  throw UsageError(
      fmt::format("{} on {} ranks takes {} microbatches in {} rounds, which do not divide them: use {} or {} "
                  "microbatches",
                  s.name, s.ranks, s.microbatches, s.microbatches / s.ranks, below, above));
}

}  // namespace pptrain::schedule
