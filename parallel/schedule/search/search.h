// Finds the order of passes that ends a step first, within the memory of each rank: for any costs of the
// stages, on a placement. Named schedules are what it begins with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

struct SearchProblem {
  Schedule shape;  // ranks, stages, microbatches, slices, placement; its lists are not read
  Costs costs{};
  std::vector<StageBytes> bytes{};  // [stage]; none: nothing takes memory
  std::vector<int64_t> room{};      // [rank] peak_bytes().total() at most; none: no bound
  ShardOptions shard{};             // how the list will be lowered
  bool post_validated = false;      // steps follow each other without a barrier (optimizer.post_validation)
  Schedule start{};                 // compute actions in an order to begin with too; none: named ones alone
};

struct SearchResult {
  Schedule compute;      // I and W, or B, in the found order
  Schedule lowered;      // proven
  double step_time = 0;  // as simulate() or post_validated_step_time() has it
  std::string named{};   // the fastest named schedule on the placement that fits; "" if none does
  double named_time = 0;
};

// The same problem gives the same list on every machine, with any number of threads (0: those of the
// machine). `percent`: of the usual work. Never slower than the named schedules that have the placement and
// fit. Throws UsageError if a rank has no room for one microbatch.
SearchResult search_schedule(const SearchProblem& problem, int percent = 100, int threads = 0);

// No order of single passes takes less: every rank waits for its first input and does its work. Overlapped
// pairs may take less, and so may post-validated steps, which begin before others have ended.
double least_step_time(const SearchProblem& problem);

}  // namespace pptrain::schedule
