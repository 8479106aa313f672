// The schedules on the loop that take a forward and a backward in turn. Those with I and W are the
// zero-bubble schedules (arXiv 2401.10241): I goes at once, W later, when the rank would idle.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <optional>

#include "core/base/error.h"
#include "parallel/schedule/generators/generator_list.h"
#include "parallel/schedule/generators/interleaved_order.h"

namespace pptrain::schedule {
namespace {

// After `warm_up` forwards of a rank, a forward and a B in turn. With `lag`: a forward and an I, and once
// `lag` I's are done a W follows each further I. The rank takes its chunks (stages) in rounds of `round`
// microbatches, each chunk in turn for the whole round; backwards the chunks come in reverse.
void alternate(Schedule& schedule, int rank, int round, int warm_up, std::optional<int> lag = {}) {
  const int chunks = schedule.stages_per_rank;
  const int total = schedule.microbatches * chunks;
  const auto at = [&](ActionKind kind, int i) {  // the i-th of the rank
    const int place = i / round % chunks;
    const int chunk = kind == ActionKind::forward ? place : chunks - 1 - place;
    return Action{kind, chunk * schedule.ranks + rank, i / (round * chunks) * round + i % round};
  };
  warm_up = std::min(warm_up, total);
  auto& list = schedule.actions[rank];
  list.reserve((lag ? 3 : 2) * static_cast<size_t>(total));
  int weights = 0;
  for (int i = 0; i < total + warm_up; ++i) {
    if (i < total) list.push_back(at(ActionKind::forward, i));
    if (i < warm_up) continue;
    list.push_back(at(lag ? ActionKind::backward_input : ActionKind::backward, i - warm_up));
    if (lag && i - warm_up >= *lag) list.push_back(at(ActionKind::backward_weight, weights++));
  }
  while (lag && weights < total) list.push_back(at(ActionKind::backward_weight, weights++));
}

void generate_1f1b(Schedule& s) {
  for (int rank = 0; rank < s.ranks; ++rank) alternate(s, rank, s.microbatches, s.ranks - 1 - rank);
}

void generate_zb_h1(Schedule& s) {
  for (int rank = 0; rank < s.ranks; ++rank) alternate(s, rank, s.microbatches, s.ranks - 1 - rank, rank);
}

void generate_zb_h2(Schedule& s) {
  for (int rank = 0; rank < s.ranks; ++rank)
    alternate(s, rank, s.microbatches, 2 * (s.ranks - 1 - rank), 2 * rank);
}

void generate_interleaved_1f1b(Schedule& s) {
  const int round = microbatches_per_round(s.ranks, s.microbatches);
  for (int rank = 0; rank < s.ranks; ++rank)
    alternate(s, rank, round, (s.stages_per_rank - 1) * round + 2 * (s.ranks - 1 - rank));
}

void generate_interleaved_zb(Schedule& s) {
  const int round = microbatches_per_round(s.ranks, s.microbatches);
  for (int rank = 0; rank < s.ranks; ++rank)
    alternate(s, rank, round, (s.stages_per_rank - 1) * round + s.ranks - 1 - rank, rank);
}

void check_1f1b(const Schedule& s) {
  if (s.microbatches >= s.ranks) return;
  throw UsageError(
      fmt::format("1f1b on {0} ranks needs at least {0} microbatches, and there are {1}: raise the number of "
                  "microbatches to {0}, or use gpipe, which takes any number",
                  s.ranks, s.microbatches));
}

// Throws UsageError, with the nearest numbers of microbatches that would do, if rounds do not divide m.
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

}  // namespace

// 1F1B (PipeDream-Flush, arXiv 2006.09503): after p - 1 - r warm-up forwards, one forward and one backward in
// turn, so that rank r holds at most p - r microbatches' activations.
const Generator one_f_one_b = {.name = "1f1b",
                               .alias = "1f1b",
                               .only_stages_per_rank = 1,
                               .check = check_1f1b,
                               .generate = generate_1f1b};

// Interleaved 1F1B (Megatron-LM, arXiv 2104.04473), with rounds of any size that divides m, as in PyTorch.
// Each rank has v stages, p apart, so that the pipeline fills in a v-th of the time.
const Generator interleaved_1f1b = {.name = "interleaved_1f1b",
                                    .alias = "interleaved1f1b",
                                    .default_stages_per_rank = 2,
                                    .repeats_with_one_stage = true,
                                    .check = check_rounds,
                                    .generate = generate_interleaved_1f1b};

// ZB-H1: the memory of 1F1B, a third of its bubble. Rank r is r W's behind, which fill its end.
const Generator zb_h1 = {
    .name = "zb_h1", .alias = "zb1p", .only_stages_per_rank = 1, .generate = generate_zb_h1};

// ZB-H2: enough forwards ahead that the first I finds no gap, and as many delayed W's, which fill the end.
// Each rank is busy without a gap (if F = I = W and m >= 2p - 1) and holds 2p - 1 microbatches.
const Generator zb_h2 = {
    .name = "zb_h2", .alias = "zb2p", .only_stages_per_rank = 1, .generate = generate_zb_h2};

// ZB-H1 with v stages per rank, in the order of interleaved 1F1B.
const Generator interleaved_zb = {.name = "interleaved_zb",
                                  .alias = "interleavedzerobubble",
                                  .default_stages_per_rank = 2,
                                  .repeats_with_one_stage = true,
                                  .check = check_rounds,
                                  .generate = generate_interleaved_zb};

}  // namespace pptrain::schedule
