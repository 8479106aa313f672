#include <algorithm>

#include "parallel/schedule/generators/generator_list.h"
#include "parallel/schedule/generators/interleaved_order.h"

namespace pptrain::schedule {
namespace {

void generate(Schedule& schedule) {
  const int round = microbatches_per_round(schedule.ranks, schedule.microbatches);
  const int total = schedule.microbatches * schedule.stages_per_rank;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const InterleavedOrder order(schedule, rank, round);
    const int wanted = (schedule.stages_per_rank - 1) * round + 2 * (schedule.ranks - 1 - rank);
    const int warm_up = std::min(wanted, total);
    auto& list = schedule.actions[rank];
    list.reserve(2 * static_cast<size_t>(total));
    for (int i = 0; i < total + warm_up; ++i) {
      if (i < total) list.push_back(order.forward_at(i));
      if (i >= warm_up) list.push_back(order.backward_at(i - warm_up));
    }
  }
}

}  // namespace

// Interleaved 1F1B (Megatron-LM, arXiv 2104.04473), with rounds of any size that divides m, as in PyTorch.
// Each rank has v stages, p apart, so that the pipeline fills in a v-th of the time.
const Generator interleaved_1f1b = {.name = "interleaved_1f1b",
                                    .alias = "interleaved1f1b",
                                    .default_stages_per_rank = 2,
                                    .repeats_with_one_stage = true,
                                    .check = check_rounds,
                                    .generate = generate};

}  // namespace pptrain::schedule
