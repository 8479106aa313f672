#include "parallel/schedule/generators/generator_list.h"

namespace pptrain::schedule {
namespace {

void generate(Schedule& schedule) {
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    auto& list = schedule.actions[rank];
    list.reserve(2 * static_cast<size_t>(schedule.microbatches));
    for (int mb = 0; mb < schedule.microbatches; ++mb) list.push_back(forward(rank, mb));
    for (int mb = 0; mb < schedule.microbatches; ++mb) list.push_back(backward(rank, mb));
  }
}

}  // namespace

// GPipe (arXiv 1811.06965): all forwards, then all backwards. Backwards ascend in the microbatch here, as
// everywhere, so that gradients are summed in one order under every schedule.
const Generator gpipe = {.name = "gpipe", .alias = "gpipe", .only_stages_per_rank = 1, .generate = generate};

}  // namespace pptrain::schedule
