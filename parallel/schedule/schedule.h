// A schedule as data: for each rank the list of what it does, and where each stage lives.
#pragma once

#include <cstddef>
#include <vector>

#include "parallel/schedule/action.h"

namespace pptrain::schedule {

enum class Placement {
  loop,  // stage s on rank s mod p
  v,     // down the ranks and back up: p = 2, v = 2 is [0,3] [1,2]
};

struct Schedule {
  int ranks = 1;
  int stages_per_rank = 1;
  int microbatches = 1;
  Placement placement = Placement::loop;
  std::vector<std::vector<Action>> actions;  // [rank] in execution order

  int stages() const { return ranks * stages_per_rank; }
  int rank_of(int stage) const;
  std::vector<int> stages_of(int rank) const;  // ascending
};

}  // namespace pptrain::schedule
