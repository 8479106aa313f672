// Walks one rank's action list. Knows actions, not schedules.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/data/microbatch.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/liveness/activity.h"
#include "parallel/pipeline/head_exchange.h"
#include "parallel/pipeline/stage.h"
#include "parallel/pipeline/time_marks.h"
#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/proof/speculation.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::pipeline {

// When an action ran. The halves of an overlapped pair stand one after the other, each as long as its turns.
struct ActionTime {
  TimeMarks::Clock::time_point wait;   // its turn came: it waits for its receive, if it has one
  TimeMarks::Clock::time_point start;  // it had its input
  TimeMarks::Clock::time_point end;
};

class Executor {
 public:
  // `stages`: this rank's, by ascending index; they must be the schedule's for this rank. `pipeline`: the
  // communicator along pp; its rank is the schedule's rank. Both must outlive the executor. `schedule`:
  // lowered and validated; it keeps this rank's list. If it is forward_only, stages save no activations.
  // Collective over `pipeline` if the schedule's head is spread.
  Executor(std::vector<StageWithWeights> stages, comm::Communicator& pipeline,
           const schedule::Schedule& schedule);

  // Reports to `activity`, which must outlive the executor, what this rank does and which receive it waits
  // for. If `device` is a GPU, it also reports which actions the GPU has done.
  void report_to(comm::Activity* activity, c10::Device device = c10::kCPU) {
    activity_ = activity;
    device_ = device;
  }

  // From now on times are of the host's clock (the CPU, as at first), of a device's, or not taken at all.
  void time_on(std::optional<c10::Device> device) { timed_on_ = device; }

  // Before the first run() with `validate`. schedule: the executor's.
  void prepare_validation(const schedule::Schedule& schedule);

  // Runs every action once over schedule.microbatches microbatches. Returns when the list is done and every
  // send has left, with what this rank held at most. Throws Error that names rank, action and stage; stages
  // then hold stale saved activations (Stage::discard).
  //
  // `validate` (after prepare_validation) is called once, at the end of this rank's prefix
  // (schedule::Speculation). Before it, the run leaves gradients alone, so that it may begin on weights that
  // are still to be confirmed. If it returns false, which it must on all ranks of `pipeline` together, what
  // was run is thrown away and the list begins anew.
  schedule::InFlight run(std::span<const data::Microbatch> microbatches,
                         const std::function<bool()>& validate = {});

  // Times of the last run: one for each of schedule::timed_actions, or none. On a device it waits for the
  // device.
  std::vector<ActionTime> times();

 private:
  using Key = std::pair<int, int>;  // stage, microbatch
  struct Message {                  // under way
    at::Tensor tensor;
    std::unique_ptr<comm::Work> work;
    schedule::Action action;  // that sends or receives it
  };

  using Passes = std::array<Pass, 2>;  // of an action, or of the two of a pair
  void log_list() const;
  static std::vector<Passes> find_passes(const std::vector<schedule::Action>& list);
  void run_range(size_t begin, size_t end);
  void mark_on_device(const schedule::Action& action);
  void throw_away_prefix();
  void run_pair(const schedule::Action& pair, const Passes& passes);
  void execute(const schedule::Action& action, const Pass& pass);
  void dispatch(const schedule::Action& action, const Pass& pass);
  // Moments of an action. goes_on: after the other half of its pair.
  static constexpr int waits_ = 0, starts_ = 1, goes_on_ = 2, ends_ = 3;
  void reset_marks();
  void begin_times();
  void mark(int moment);
  void compute(const schedule::Action& action, const Pass& pass);
  void run_on_weights(const schedule::Action& action, const Pass& pass);
  void run_forward(const schedule::Action& action);
  void run_backward(const schedule::Action& action);
  void run_head_forward(const schedule::Action& action);
  void run_head_backward(const schedule::Action& action);
  void expect_head(int microbatch);
  HeadExchange::Wait waits(const schedule::Action& action);
  bool ends_in_head(const Stage& stage) const {
    return head_ != nullptr && stage.index() + 1 == schedule_.stages();
  }
  void count_held(int activations, int weight_operands);
  void receive(const schedule::Action& action);
  void post_receives_up_to(const schedule::Action& last);
  void post_receive(const schedule::Action& action);
  void post_send(const schedule::Action& action);
  void send(at::Tensor tensor, const schedule::Action& action);
  at::Tensor take_input(std::map<Key, at::Tensor>& local, schedule::ActionKind receive,
                        const schedule::Action& action, bool expected);
  std::map<Key, Message>& received(schedule::ActionKind receive) {
    return receive == schedule::ActionKind::recv_f ? received_inputs_ : received_gradients_;
  }
  int source_of(const schedule::Action& receive) const {
    return schedule_.rank_of(schedule::other_stage(receive));
  }
  at::Tensor empty_boundary(const schedule::Action& action);  // for the action's message
  void wait_for(Message& receive);
  void reap_sends(bool wait);
  void finish();
  const StageWithWeights& find(int stage) const;
  Stage& stage(int index) const { return find(index).stage; }
  bool is_local(int stage) const;

  std::vector<StageWithWeights> stages_;
  comm::Communicator& pipeline_;
  schedule::Schedule schedule_;  // with the list of this rank alone
  std::optional<schedule::Speculation> speculation_;
  comm::Activity* activity_ = nullptr;
  c10::Device device_ = c10::kCPU;  // of the marks that the activity gets
  std::vector<Passes> passes_;      // of this rank's actions

  std::span<const data::Microbatch> microbatches_;
  // Values between actions. Keys name the stage that consumes (inputs) or produced (outputs) them.
  std::map<Key, at::Tensor> local_inputs_, local_gradients_;
  std::map<Key, Message> received_inputs_, received_gradients_;
  std::map<int, std::deque<schedule::Action>> due_receives_;  // [source] not posted yet
  std::map<Key, at::Tensor> outputs_, input_gradients_;
  std::deque<Message> sends_;
  std::unique_ptr<HeadExchange> head_;  // of a head in parts
  schedule::InFlight peak_;             // of the run
  std::optional<c10::Device> timed_on_ = c10::kCPU;
  TimeMarks marks_;
  std::vector<std::pair<size_t, int>> marked_;  // [mark] the timed action, by its number, and the moment
  size_t timed_ = 0;                            // actions so far
  size_t now_ = 0;                              // the one that goes on
  int in_flight_ = 0;
  int weight_operands_ = 0;
};

}  // namespace pptrain::pipeline
