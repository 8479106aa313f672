// Schedules of all forwards, then all backwards. Backwards ascend in the microbatch here, as everywhere, so
// that gradients are summed in one order under every schedule.
#include <ranges>
#include <vector>

#include "parallel/schedule/generators/generator_list.h"

namespace pptrain::schedule {
namespace {

void generate(Schedule& schedule) {
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    auto& list = schedule.actions[rank];
    const std::vector<int> stages = schedule.stages_of(rank);
    for (const int stage : stages) {
      for (int mb = 0; mb < schedule.microbatches; ++mb) list.push_back(forward(stage, mb));
    }
    for (const int stage : std::views::reverse(stages)) {
      for (int mb = 0; mb < schedule.microbatches; ++mb) list.push_back(backward(stage, mb));
    }
  }
}

}  // namespace

// GPipe (arXiv 1811.06965).
const Generator gpipe = {.name = "gpipe", .alias = "gpipe", .only_stages_per_rank = 1, .generate = generate};

// Breadth-first pipeline (arXiv 2211.05953): GPipe over v stages per rank, all microbatches of a stage before
// the next stage.
const Generator looped_bfs = {.name = "looped_bfs",
                              .alias = "loopedbfs",
                              .default_stages_per_rank = 2,
                              .repeats_with_one_stage = true,
                              .generate = generate};

}  // namespace pptrain::schedule
