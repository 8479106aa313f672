#include <algorithm>

#include "parallel/schedule/generators/generator_list.h"

namespace pptrain::schedule {

// 1F1B (PipeDream-Flush, arXiv 2006.09503): after p - 1 - r warm-up forwards, one forward and one backward in
// turn, so that rank r holds at most p - r microbatches' activations.
void generate_1f1b(Schedule& schedule) {
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

}  // namespace pptrain::schedule
