// Finds the layout of a job with the best prediction: on the job's mesh, or on all meshes of a number of
// ranks.
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
  // On the job's mesh: also other micro_batch_size x grad_accum_steps with the same product.
  bool microbatches = false;
  int world = 1;      // of search_meshes(): ranks
  double budget = 0;  // bytes a rank; 0: no bound
  size_t rows = 10;   // of search_meshes(): most meshes ranked; more take longer
  // For the layouts that rank first, also searches orders (schedule::search_schedule); in per cent of its
  // usual work on the best of them. 0: named schedules only.
  int order_effort = 0;
  // On the job's mesh: lists an order if it shortens the best named schedule's step by this fraction.
  double order_gain = 0;
  // Reports what the search does now, from its own thread: "simulating the best of 4,812 layouts".
  std::function<void(const std::string&)> progress{};
};

// A layout with its prediction or estimate.
struct Candidate {
  Layout layout;
  double step_time = 0;  // s
  double tokens_per_s = 0;
  RankBytes bytes;  // of the fullest rank
  bool fits = true;
  // From search() only: make_plan(base, layout, *lowered) is the candidate's plan. Candidates that differ
  // only in the split share `lowered`.
  std::shared_ptr<const schedule::Schedule> lowered = nullptr;
  double bubble = 0;  // part of the step; from search_meshes() as in TimeSplit

  // Is its order a searched one?
  bool is_order() const { return schedule_choice(layout.schedule) == ScheduleChoice::search; }
};

// Every training schedule x stages per rank x split (even, cost) x place of the head that the job allows.
// Those that fit come first, then the faster, then those with less memory. If a layout does not fit and the
// job leaves train.recompute open, stages recompute more. A searched order is the schedule "search": one row
// at most, of a layout that may fit only with it. Schedules with the same lists of actions are one, the first
// of training_schedule_names(). Throws UsageError if there is none.
std::vector<Candidate> search(const PlanBase& base, const CostSource& source, const SearchOptions& options);

// Bytes that a rank may use: distributed.pp_memory_gb, else the device's memory, else 0 for no bound.
double memory_budget(const PlanBase& base, const CostSource& source);

// --- All meshes of a number of ranks.

// The parts of a step's time, s: the mean of the ranks. They add up to the step.
struct TimeSplit {
  double compute = 0;                                 // including recompute
  std::array<double, kernels::wire_count> waiting{};  // [wire] for exchanges in passes
  double weights = 0;                                 // gathers that lengthen the step
  double gradients = 0;                               // and sums that do
  double bubble = 0;                                  // ranks wait for other stages
  double optimizer = 0;
  double others = 0;  // the norm's exchange, and what a run was measured to take besides

  // The parts that cost something, by name.
  std::vector<std::pair<std::string, double>> parts() const;
};

// The best of all layouts that differ from the best in one respect.
struct Loser {
  std::string what;  // "dp_shard x tp", "schedule gpipe"
  Candidate candidate;
  std::string why;  // the parts of its time that are longer; or what does not fit
};

struct MeshSearchResult {
  int64_t samples = 0;             // of a step, of all data ranks: what every layout keeps
  int64_t meshes = 0;              // legal ones
  int64_t layouts = 0;             // meshes x microbatches x recompute x sharding
  int64_t simulated = 0;           // layouts; the bounds of the others are too slow or too large
  std::vector<Candidate> ranking;  // the best layout of each mesh that fits, the fastest first
  // For every number of pipeline ranks that the ranking lacks, the best that was found; ascending.
  std::vector<Candidate> best_of_pp{};
  TimeSplit time;                    // of the first
  std::optional<Candidate> refined;  // search()'s result for the first meshes
  std::vector<Loser> losers;         // those that fit first, the fastest first
};

// Searches every mesh of the ranks x microbatch size x recompute x reshard_after_forward x reduce_gradients x
// schedule x stages per rank. Keeps the samples of a step, and ignores what the job says of these keys. Steps
// of many microbatches are stretched from short ones (see Stretch), within 2 % of what predict() says; the
// first of the ranking has been lowered, proven and predicted whole, and fits by that. In the ranking all
// stages recompute alike, the last one has the head, and sequences are whole.
// Then search() refines the first three meshes that have a pipeline, with the job's place of the head and
// slices; the fastest of them with orders too. That is `refined` if it is faster than the first of the
// ranking. If the job asks for a spread head or slices, `refined` is set in any case, from the first meshes
// that allow them, except for steps of very many microbatches. Throws UsageError if no mesh is legal; the
// ranking is empty if none fits.
MeshSearchResult search_meshes(const PlanBase& base, const CostSource& source, const SearchOptions& options);

}  // namespace pptrain::app
