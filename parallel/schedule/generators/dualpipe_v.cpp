#include <spdlog/fmt/fmt.h>

#include <deque>
#include <vector>

#include "core/base/error.h"
#include "parallel/schedule/generators/generator_list.h"

namespace pptrain::schedule {
namespace {

class RankList {
 public:
  RankList(Schedule& schedule, int rank) : list_(schedule.actions[rank]), stages_(schedule.stages_of(rank)) {}

  void f(int chunk) { list_.push_back(next_forward(chunk)); }
  // B, or I with its W left for later.
  void b(int chunk, bool split) {
    if (!split) return list_.push_back(next_backward(chunk));
    const Action whole = next_backward(chunk);
    list_.push_back(backward_input(whole.stage, whole.microbatch));
    waiting_.push_back(backward_weight(whole.stage, whole.microbatch));
  }
  void w() {
    if (waiting_.empty()) return;
    list_.push_back(waiting_.front());
    waiting_.pop_front();
  }
  void pair(int forward_chunk, int backward_chunk) {
    const Action f = next_forward(forward_chunk);
    list_.push_back(overlapped(f, next_backward(backward_chunk)));
  }

 private:
  Action next_forward(int chunk) { return forward(stages_[chunk], forwards_[chunk]++); }
  Action next_backward(int chunk) { return backward(stages_[chunk], backwards_[chunk]++); }

  std::vector<Action>& list_;
  std::vector<int> stages_;
  std::deque<Action> waiting_;
  int forwards_[2] = {0, 0};
  int backwards_[2] = {0, 0};
};

void generate_rank(Schedule& schedule, int rank) {
  const int below = schedule.ranks - 1 - rank;
  RankList list(schedule, rank);
  for (int n = 0; n < 2 * below; ++n) list.f(0);
  for (int n = 0; n < rank + 1; ++n) list.f(0), list.f(1);
  for (int n = 0; n < below; ++n) list.b(1, true), list.w(), list.f(1);

  const int steady = schedule.microbatches - 2 * schedule.ranks + rank + 1;
  for (int n = 0; n < steady; ++n) {
    // The turn of the V hands its forward to its own backward: in a pair the first would wait for nothing.
    if (n == 0 && below == 0) {
      list.f(0), list.b(1, false);
    } else {
      list.pair(0, 1);
    }
    list.pair(1, 0);
  }
  for (int n = 0; n < below; ++n) list.b(1, false), list.pair(1, 0);

  const int half = (rank + 1) / 2;  // from the middle of this phase on, I alone: its W's fill the end
  bool split = false;
  for (int n = 0; n < rank + 1; ++n) {
    split |= n == half && rank % 2 == 1;
    list.b(1, split);
    split |= n == half && rank % 2 == 0;
    list.b(0, split);
  }
  for (int n = 0; n < below; ++n) list.w(), list.b(0, split);
  for (int n = 0; n < rank + 1; ++n) list.w();
}

void check(const Schedule& s) {
  if (s.microbatches >= 2 * s.ranks) return;
  throw UsageError(
      fmt::format("dualpipe_v on {} ranks needs at least {} microbatches (two per rank), and there are {}: "
                  "raise the number of microbatches to {}, or use zbv, which takes any number",
                  s.ranks, 2 * s.ranks, s.microbatches, 2 * s.ranks));
}

void generate(Schedule& schedule) {
  schedule.placement = Placement::v;
  for (int rank = 0; rank < schedule.ranks; ++rank) generate_rank(schedule, rank);
}

}  // namespace

// DualPipeV (DeepSeek's DualPipe, cut in half to a V as Sea AI Lab proposed): in its steady phase a forward
// of one stage runs with a backward of the rank's other stage, so that each hides the other's communication.
const Generator dualpipe_v = {.name = "dualpipe_v",
                              .alias = "dualpipev",
                              .default_stages_per_rank = 2,
                              .only_stages_per_rank = 2,
                              .check = check,
                              .generate = generate};

}  // namespace pptrain::schedule
