// Measures how each step spends its time, and traces some steps to trace.json.
#pragma once

#include <c10/util/ScopeExit.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "app/plan/run_context.h"
#include "app/run/pace.h"
#include "app/trace/step_trace.h"
#include "core/kernels/kernel_times.h"
#include "core/metrics/step_record.h"
#include "parallel/comm/liveness/activity.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/time_marks.h"

namespace pptrain::app {

class StepProfile {
 public:
  // All must outlive the profile. schedule: the executor's, with all lists.
  StepProfile(RunContext& context, pipeline::Executor& executor, const schedule::Schedule& schedule);
  // The next steps are this executor's. No step may be without its settle().
  void follow(pipeline::Executor& executor, const schedule::Schedule& schedule);

  // Collective, as are settle and finish: the step begins now.
  void begin_step(int64_t step);
  // The step ends now on this rank.
  void end_step();
  // Returns, on rank 0, how the ranks idled in the step that ended last; all have ended it. May be called
  // within the next step. On a GPU only traced steps are measured, and settle() waits for the device; after
  // other steps it returns nothing.
  std::optional<metrics::Bubble> settle();
  // Rank 0: what all ranks did in the last settled step; empty if it was not measured.
  const std::vector<RankShares>& shares() const { return shares_; }
  // Writes the trace if the run ends before the trace does, and says where it is.
  void finish();

  // Runs `body` as a phase of the step, or between steps.
  template <typename Body>
  decltype(auto) timed(Phase phase, Body&& body) {
    const comm::ActivityScope activity(context_.activity, doing(phase), name(phase));
    phases_.push_back(phase);
    marks_.mark();
    const auto end = c10::make_scope_exit([this] { marks_.mark(); });
    return std::forward<Body>(body)();
  }

 private:
  bool traced(int64_t count) const;
  std::optional<at::Device> timed_on() const;
  void start_marks(std::optional<at::Device> device);
  double seconds(pipeline::TimeMarks::Clock::time_point time) const;
  // The phases whose marks begin at `first`.
  void take_phases(StepTrace& trace, size_t first);
  metrics::Bubble measure(const StepTrace& trace);
  void write();

  RunContext& context_;
  pipeline::Executor* executor_;
  const schedule::Schedule* schedule_;
  // Of its own: the next step's messages may be in flight.
  std::unique_ptr<comm::Communicator> pipeline_;
  std::unique_ptr<comm::Communicator> pipelines_;  // ranks of the same stages, one of each pipeline
  std::chrono::nanoseconds clock_offset_{0};
  int64_t count_ = 0;  // steps begun since the start
  int64_t step_ = 0;
  double waited_ = 0;          // s, of this thread before the step
  pipeline::TimeMarks marks_;  // of a step: its begin, two for each phase, its end
  std::vector<Phase> phases_;
  std::optional<std::pair<int64_t, StepTrace>> ended_;  // count_ and times of a step not settled yet
  std::vector<RankShares> shares_;
  bool written_ = false;  // rank 0: trace.json is there
  std::vector<StepTrace> traces_;
  std::vector<metrics::Bubble> bubbles_;  // of the traced steps
  kernels::KernelTimes kernel_times_;     // of the traced steps, on a CPU
  std::optional<kernels::KernelClock> kernel_clock_;
};

}  // namespace pptrain::app
