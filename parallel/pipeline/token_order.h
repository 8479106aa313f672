// The order in which a rank of the pipeline generates tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace pptrain::pipeline {

// Generation goes in rounds: in each, every group of sequences goes through all stages once. The last stage
// then chooses a token for each sequence and tells every other rank; the group's next round begins with these
// tokens. Rounds of one group follow each other; those of different groups overlap, so that with as many
// groups as pipeline ranks every rank always has something to do.
struct TokenAction {
  // The choice of the group's round comes from the last stage's rank: its receive is posted. Otherwise a
  // forward of a stage of this rank: receives its input if another rank has it, computes, sends.
  bool is_choice = false;
  int group = 0;
  int64_t round = 0;
  int stage = 0;  // of a forward

  // When it is its turn (TokenOrder): its slot, then the number of the group's pass among all groups' passes,
  // then the stage, on all ranks alike.
  int64_t slot = 0, pass = 0;
};

// An endless list: the caller ends it when it knows that all groups are done. Actions of groups that are done
// are left out by all ranks alike.
//
// Every action has a slot, the time at which it runs if all passes take one unit and no rank waits. The slot
// of a stage is the slot of the stage before it, plus 1. The slot of a choice is the last stage's, plus 1;
// the next round's first stage comes at it or later. Ranks go through their actions in the order of slots. So
// whatever an action waits for has an earlier slot, and no wait goes round in a circle; and messages between
// two ranks are sent in the order in which they are received.
class TokenOrder {
 public:
  // Stages lie as in `schedule`, whose actions do not matter. `rank`: this one, of its ranks.
  TokenOrder(const schedule::Schedule& schedule, int rank, int groups);

  TokenAction next();

 private:
  int64_t passes_ = 0;             // in a round, those of groups that are not there included
  int64_t period_ = 0;             // slots of a round
  std::vector<TokenAction> next_;  // what comes next of each kind
};

}  // namespace pptrain::pipeline
