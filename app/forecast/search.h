// Finds the layout of a job that the predictions like best: on the job's mesh, or on all meshes of a number
// of ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/forecast/costs.h"
#include "app/forecast/prediction.h"
#include "app/plan/plan.h"
#include "core/kernels/cost.h"

namespace pptrain::app {

struct SearchOptions {
  // On the job's mesh: also other micro_batch_size x grad_accum_steps of the same product.
  bool microbatches = false;
  int world = 1;      // of search_meshes(): ranks
  double budget = 0;  // bytes a rank; 0: no bound
  size_t rows = 10;   // of search_meshes(): meshes ranked, at most: the more, the longer the search takes
  // For the layouts that rank first, also orders that are searched (schedule::search_schedule); per cent of
  // its usual work on the best of them. 0: named schedules alone.
  int order_effort = 0;
  // On the job's mesh: an order is listed where it is faster by this part of the best named schedule's step.
  double order_gain = 0;
  // Says what the search does now, from its own thread: "simulating the best of 4,812 layouts".
  std::function<void(const std::string&)> progress{};
};

// A layout with what predictions or estimates say of it.
struct Candidate {
  Layout layout;
  double step_time = 0;  // s
  double tokens_per_s = 0;
  RankBytes bytes;  // of the fullest rank
  bool fits = true;
  // Of search() alone: make_plan(base, layout, *lowered) is the candidate's plan; candidates that differ only
  // in the split share `lowered`.
  std::shared_ptr<const schedule::Schedule> lowered = nullptr;
  double bubble = 0;  // of the step; of search_meshes() what TimeSplit calls so

  // Is its order a searched one?
  bool is_order() const { return schedule_choice(layout.schedule) == ScheduleChoice::search; }
};

// Every training schedule x stages per rank x split (even, cost) x place of the head that the job allows,
// fitting ones first, the fastest first; of equally fast ones the one with less memory. Where a layout does
// not fit and the job leaves train.recompute open, stages recompute more. A searched order is the schedule
// "search": one row at most, of a layout that may fit with it alone. Schedules that are the same lists of
// actions are one, the first of training_schedule_names(). Throws UsageError if there is none.
std::vector<Candidate> search(const PlanBase& base, const CostSource& source, const SearchOptions& options);

// Bytes that a rank may use: distributed.pp_memory_gb, else the device's memory, else 0 for no bound.
double memory_budget(const PlanBase& base, const CostSource& source);

// --- All meshes of a number of ranks.

// Where the time of a step goes, s: the mean of the ranks. The parts add up to the step.
struct TimeSplit {
  double compute = 0;                                 // what is computed again included
  std::array<double, kernels::wire_count> waiting{};  // [wire] for exchanges in passes
  double weights = 0;                                 // gathers that the step is longer by
  double gradients = 0;                               // and sums
  double bubble = 0;                                  // ranks wait for other stages
  double optimizer = 0;
  double others = 0;  // the norm's exchange, and what a run was measured to take besides

  // Those that cost something, by name.
  std::vector<std::pair<std::string, double>> parts() const;
};

// The best of what differs from the best of all in one respect.
struct Loser {
  std::string what;  // "dp_shard x tp", "schedule gpipe"
  Candidate candidate;
  std::string why;  // what it takes longer by; or what it has no room for
};

struct MeshSearchResult {
  int64_t samples = 0;             // of a step, of all data ranks: what every layout keeps
  int64_t meshes = 0;              // that are legal
  int64_t layouts = 0;             // meshes x microbatches x recompute x sharding
  int64_t simulated = 0;           // layouts; the others are slower or larger by what they take at least
  std::vector<Candidate> ranking;  // the best layout of each mesh that fits, the fastest first
  // Of every number of pipeline ranks that the ranking lacks, the best that was found; ascending.
  std::vector<Candidate> best_of_pp{};
  TimeSplit time;                    // of the first
  std::optional<Candidate> refined;  // what search() makes of the first meshes
  std::vector<Loser> losers;         // fitting ones first, the fastest first
};

// Searches every mesh of the ranks x microbatch size x recompute x reshard_after_forward x reduce_gradients x
// schedule x stages per rank. The samples of a step are kept, and what the job says of these keys is not.
// Steps of many microbatches are stretched from short ones (see Stretch), within 2 % of what predict() says;
// the first of the ranking has been lowered, proven and predicted whole, and fits by that. In the ranking all
// stages recompute alike, the last one has the head, and sequences are whole. search() then refines the first
// three meshes, where they have a pipeline, with the job's place of the head and slices; the fastest of them
// with orders too. That is `refined` where it is faster than the first of the ranking. A job that asks for a
// spread head or slices has it in any case, of the first meshes that allow them; steps of very many
// microbatches have none. Throws UsageError where no mesh is legal; the ranking is empty where none fits.
MeshSearchResult search_meshes(const PlanBase& base, const CostSource& source, const SearchOptions& options);

}  // namespace pptrain::app
