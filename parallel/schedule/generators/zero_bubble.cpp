// The zero-bubble schedules on the loop (arXiv 2401.10241): I goes at once, W later, where the rank would
// idle.
#include <algorithm>

#include "parallel/schedule/generators/generator_list.h"
#include "parallel/schedule/generators/interleaved_order.h"

namespace pptrain::schedule {
namespace {

// After `warm_up` forwards, a forward and an I in turn; once `lag` I's are done a W follows each further I.
void generate(Schedule& schedule, int rank, int round, int warm_up, int lag) {
  const InterleavedOrder order(schedule, rank, round);
  const int total = schedule.microbatches * schedule.stages_per_rank;
  warm_up = std::min(warm_up, total);
  auto& list = schedule.actions[rank];
  list.reserve(3 * static_cast<size_t>(total));
  int weights = 0;
  for (int i = 0; i < total + warm_up; ++i) {
    if (i < total) list.push_back(order.forward_at(i));
    if (i < warm_up) continue;
    list.push_back(order.backward_input_at(i - warm_up));
    if (i - warm_up >= lag) list.push_back(order.backward_weight_at(weights++));
  }
  while (weights < total) list.push_back(order.backward_weight_at(weights++));
}

void generate_zb_h1(Schedule& schedule) {
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    generate(schedule, rank, schedule.microbatches, schedule.ranks - 1 - rank, rank);
  }
}

void generate_zb_h2(Schedule& schedule) {
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    generate(schedule, rank, schedule.microbatches, 2 * (schedule.ranks - 1 - rank), 2 * rank);
  }
}

void generate_interleaved_zb(Schedule& schedule) {
  const int round = microbatches_per_round(schedule.ranks, schedule.microbatches);
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const int warm_up = (schedule.stages_per_rank - 1) * round + schedule.ranks - 1 - rank;
    generate(schedule, rank, round, warm_up, rank);
  }
}

}  // namespace

// ZB-H1: the memory of 1F1B, a third of its bubble. Rank r is r W's behind, which fill its end.
const Generator zb_h1 = {
    .name = "zb_h1", .alias = "zb1p", .only_stages_per_rank = 1, .generate = generate_zb_h1};

// ZB-H2: enough forwards ahead that the first I finds no gap, and W's behind that fill the end as far: each
// rank is busy without a gap (if F = I = W and m >= 2p - 1) and holds 2p - 1 microbatches.
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
