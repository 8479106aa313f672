// A stop for a launcher that will not wait for the step under way: the last finished step is saved instead.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/fault/shutdown.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/liveness/activity.h"

namespace pptrain::app {

// Between two updates of the weights a rank holds the state of a finished step, whatever its pipeline does
// meanwhile. When the launcher asks for an end, a thread of each rank waits for a quarter of the time that
// the launcher leaves: the run may stop in order until then. After that no update begins on any rank; the
// ranks agree on the newest step that one of them has begun to apply, which all can then finish (its gradient
// norm is known, so every rank has done its part), save it through a communicator of their own while the main
// threads are held, and end with exit code 3.
//
// The launcher's agent on one host may ask alone (a pod is evicted, a node drained). So a rank that is asked
// summons all others, which then act as if they had been asked. Where that does not reach them (without
// heartbeats), nothing is held: the main threads finish the step under way and stop in order.
//
// After a notice the same is done, except that the process waits for the request before it ends. If none
// comes in time, the main threads go on from where they were held.
class QuickStop {
 public:
  // Saves the state of the step that all ranks have finished, and says so: "step 2 is saved in ...". Called
  // by the quick stop's thread while the main thread may be anywhere between two updates, or held.
  using Save = std::function<std::string(comm::Communicator&, const checkpoint::RunState&)>;

  // Collective over `world`, which it must not outlive, as `shutdown`. `patience`: from the launcher's first
  // signal to SIGKILL; a notice comes half of it before the request. `state`: of the last finished step.
  // `take_leave` is called before the process ends, so that others do not take it for dead; it may be empty.
  QuickStop(comm::Communicator& world, const fault::Shutdown& shutdown, std::chrono::milliseconds patience,
            const checkpoint::RunState& state, Save save, std::function<void()> take_leave,
            comm::Summons summons);
  // Does not return once the quick stop is under way: it ends the process.
  ~QuickStop();
  QuickStop(const QuickStop&) = delete;
  QuickStop& operator=(const QuickStop&) = delete;

  // --- called by the main thread ---
  // The weights of `step` are about to change; all ranks' parts of its gradient norm are known. Does not
  // return if the step is given up.
  void begin_update(int64_t step);
  // The weights are those of state.step. `saves`: this thread will save that step itself, whatever comes.
  void finished(const checkpoint::RunState& state, bool saves);
  void saved();
  // All ranks have agreed to stop after the finished step. Does not return where the quick stop has begun to
  // save it.
  void stopping();

 private:
  enum class Mode { waiting, deciding, saving };
  using Lock = std::unique_lock<std::mutex>;

  void run(const fault::StopRequest& request);
  bool all_are_asked();
  bool sleep_until(std::chrono::steady_clock::time_point time);  // false: this object is being destroyed
  bool decide();                                                 // true: this thread saves the state
  std::string save();
  bool request_follows(const fault::StopRequest& notice);
  [[noreturn]] void end(const std::string& saved);
  void release();  // the main thread may go on
  // The highest of all ranks' values, place by place. Nothing where this object is being destroyed meanwhile.
  using Values = std::vector<double>;
  std::optional<Values> highest(Values values);
  // As highest(), and nothing where another rank has ended.
  std::optional<Values> highest_unless_one_ended(const Values& values);
  bool complete(comm::Work& work);

  std::unique_ptr<comm::Communicator> world_;
  const fault::Shutdown& shutdown_;
  const std::chrono::milliseconds patience_;
  const Save save_;
  const std::function<void()> take_leave_;
  const comm::Summons summons_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Mode mode_ = Mode::waiting;
  checkpoint::RunState state_;    // of the last finished step
  int64_t begun_;                 // the last step whose update was allowed to begin
  std::optional<int64_t> limit_;  // no later step's update may begin
  bool main_saves_ = false;       // the main thread will save state_
  bool stopping_ = false;         // ... or ends the run in order
  bool leaving_ = false;          // the destructor waits

  std::optional<fault::StopListener> listener_;  // last: its thread uses all of the above
};

}  // namespace pptrain::app
