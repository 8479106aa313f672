#include <algorithm>
#include <vector>

#include "parallel/schedule/generators/generator_list.h"

namespace pptrain::schedule {
namespace {

// One rank's list: counts microbatches by stage and kind, and leaves out those beyond the last.
class RankList {
 public:
  RankList(Schedule& schedule, int rank)
      : list_(schedule.actions[rank]),
        stages_(schedule.stages_of(rank)),
        microbatches_(schedule.microbatches) {
    list_.reserve(6 * static_cast<size_t>(microbatches_));
  }

  void f(int chunk) { add(forward(stages_[chunk], forwards[chunk]++)); }
  void i(int chunk) { add(backward_input(stages_[chunk], inputs[chunk]++)); }
  void w(int chunk) { add(backward_weight(stages_[chunk], weights[chunk]++)); }

  int forwards[2] = {0, 0};
  int inputs[2] = {0, 0};
  int weights[2] = {0, 0};

 private:
  void add(const Action& action) {
    if (action.microbatch < microbatches_) list_.push_back(action);
  }

  std::vector<Action>& list_;
  std::vector<int> stages_;
  int microbatches_;
};

void generate(Schedule& schedule) {
  schedule.placement = Placement::v;
  const int p = schedule.ranks;
  const int built_for = std::max(2 * p - 1, schedule.microbatches);
  for (int rank = 0; rank < p; ++rank) {
    RankList list(schedule, rank);
    for (int n = 0; n < 2 * (p - rank) - 1; ++n) list.f(0);
    for (int n = 0; n < rank; ++n) list.f(1), list.f(0);
    for (int n = 0; n < p - rank; ++n) list.f(1), list.i(1), list.w(1);
    while (list.forwards[1] < built_for) {
      if (list.forwards[0] < built_for) list.f(0);
      list.i(0), list.w(0), list.f(1), list.i(1), list.w(1);
    }
    for (int n = 0; n < rank; ++n) list.i(0), list.i(1);
    for (int n = 0; n < p - rank; ++n) list.i(0), list.w(0);
    while (list.weights[1] < list.inputs[1]) list.w(1);
    while (list.weights[0] < list.inputs[0]) list.w(0);
  }
}

}  // namespace

// ZB-V (arXiv 2401.10241, section 6): two stages per rank on a V, so that the last stage is on the first
// rank; the memory of 1F1B, and no bubble inside the parallelogram if F = I = W. The pattern needs 2p - 1
// microbatches: with fewer it is made for so many, and what is beyond the last is left out.
const Generator zbv = {.name = "zbv",
                       .alias = "zbvzerobubble",
                       .default_stages_per_rank = 2,
                       .only_stages_per_rank = 2,
                       .generate = generate};

}  // namespace pptrain::schedule
