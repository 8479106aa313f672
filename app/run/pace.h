// Whether a run keeps its pace: compares each step with the plan, or with the start's own first steps, and
// names the rank whose passes make a step slow. The record is kept in pace.json.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/forecast/core_sharing.h"
#include "app/plan/plan.h"
#include "parallel/schedule/cost/measured_step.h"

namespace pptrain::app {

// Seconds of one rank in a step: forward, backward, weight gradients, other work (data, optimizer and the
// like), waiting for transfers; and all time but waits for other ranks, which passes have too (on a GPU the
// sum of passes and other work).
using RankShares = std::array<double, 6>;

// For each rank of one pipeline, from its times and their split (schedule::split_step).
std::vector<RankShares> rank_shares(const schedule::Schedule& schedule,
                                    std::span<const schedule::RankStep> steps,
                                    std::span<const schedule::RankTime> times);

struct StepPace {
  double seconds = 0;
  std::vector<RankShares> ranks{};  // [rank of the world]; empty if passes are not timed, as on a GPU
};

// Steps in a row that are slow.
struct Slowness {
  int64_t first = 0;
  std::optional<int64_t> last;  // nothing: they still are
  double factor = 1;            // of the reference's step time
  std::string why;              // "rank 3's forward +40 %"
};

struct PaceRecord {
  double planned = 0;            // s a step; 0: there is no plan
  std::string costs;             // the source of the plan's costs
  int64_t first = 0, last = 0;   // the steps that others are compared with; 0: the plan itself
  double reference = 0;          // s a step
  std::vector<Slowness> slow{};  // the newest last

  // "planned" or "steps 4 to 13".
  std::string compared_with() const;
};

bool is_slow(const PaceRecord& record);  // at its newest steps
// For people: how the run goes now, on one line.
std::string describe_pace(const PaceRecord& record);
// "steps 120 to 150 were 12 % slower than planned: rank 3's forward +40 %"
std::string describe(const Slowness& slow, const PaceRecord& record);

inline constexpr const char* pace_name = "pace.json";

// Nothing if the file is not there, or is not sound.
std::optional<PaceRecord> read_pace(const std::filesystem::path& run_dir);
// Throws Error.
void write_pace(const std::filesystem::path& run_dir, const PaceRecord& record);

class Pace {
 public:
  // Compares steps with the plan if a run measured its costs (distributed.pp_costs names a trace). Else
  // compares them with this start's first steps, because modelled costs may be far off; the plan is then
  // judged once. `sharing`: of the cores of this start's ranks, which the modelled plan counts.
  explicit Pace(const Plan& plan, const CoreSharing& sharing = {});

  // Steps in ascending order. Returns a line for the log if the record has changed, else "". Steps are judged
  // in blocks, each by its median, so a few slow ones change nothing.
  std::string take(int64_t step, const StepPace& measured);
  const PaceRecord& record() const { return record_; }

 private:
  std::string judge(int64_t last);  // the block that ends with this step
  bool may_change();                // between slow and not, with this block
  std::string first_line(const StepPace& mean, double time, int64_t first, int64_t last) const;
  std::string why(const StepPace& measured, const StepPace& expected) const;

  bool pipeline_alone_;  // no stage is on several ranks
  StepPace plan_, reference_;
  PaceRecord record_;
  int64_t seen_ = 0;     // steps
  bool judged_ = false;  // a block has been judged
  // Blocks: all, those until the last change, and how many have to pass before the next one.
  int64_t blocks_ = 0, changed_ = 0, pause_ = 0;
  std::vector<double> times_;  // of the block's steps, s
  StepPace sum_;               // of them
};

}  // namespace pptrain::app
