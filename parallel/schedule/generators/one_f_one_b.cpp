#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "core/base/error.h"
#include "parallel/schedule/generators/generator_list.h"

namespace pptrain::schedule {
namespace {

void check(const Schedule& s) {
  if (s.microbatches >= s.ranks) return;
  throw UsageError(
      fmt::format("1f1b on {0} ranks needs at least {0} microbatches, and there are {1}: raise the number of "
                  "microbatches to {0}, or use gpipe, which takes any number",
                  s.ranks, s.microbatches));
}

void generate(Schedule& schedule) {
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    auto& list = schedule.actions[rank];
    list.reserve(2 * static_cast<size_t>(schedule.microbatches));
    const int warm_up = std::min(schedule.ranks - 1 - rank, schedule.microbatches);
    for (int mb = 0; mb < schedule.microbatches + warm_up; ++mb) {
      if (mb < schedule.microbatches) list.push_back(forward(rank, mb));
      if (mb >= warm_up) list.push_back(backward(rank, mb - warm_up));
    }
  }
}

}  // namespace

// 1F1B (PipeDream-Flush, arXiv 2006.09503): after p - 1 - r warm-up forwards, one forward and one backward in
// turn, so that rank r holds at most p - r microbatches' activations.
const Generator one_f_one_b = {
    .name = "1f1b", .alias = "1f1b", .only_stages_per_rank = 1, .check = check, .generate = generate};

}  // namespace pptrain::schedule
