// Walks one rank's action list. Knows actions, not schedules.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/data/microbatch.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/liveness/activity.h"
#include "parallel/pipeline/action_times.h"
#include "parallel/pipeline/boundary_exchange.h"
#include "parallel/pipeline/head_exchange.h"
#include "parallel/pipeline/stage.h"
#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/proof/speculation.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::pipeline {

class Executor {
 public:
  // `stages`: this rank's, by ascending index; they must be the schedule's for this rank. `pipeline`: the
  // communicator along pp; its rank is the schedule's rank. Both must outlive the executor. `schedule`:
  // lowered and validated; it keeps this rank's list. If it is forward_only, stages save no activations.
  // head: of a spread head, from another executor's user; without it the executor makes its own, collectively
  // over `pipeline`.
  Executor(std::vector<StageWithWeights> stages, comm::Communicator& pipeline,
           const schedule::Schedule& schedule, HeadLinks* head = nullptr);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Reports to `activity`, which must outlive the executor, what this rank does and which receive it waits
  // for. If `device` is a GPU, it also reports which actions the GPU has done.
  void report_to(comm::Activity* activity, c10::Device device = c10::kCPU) {
    activity_ = activity;
    device_ = device;
    boundaries_.report_to(activity);
  }

  // From now on times are of the host's clock (the CPU, as at first), of a device's, or not taken at all.
  void time_on(std::optional<c10::Device> device) { times_.time_on(device); }

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
  std::vector<ActionTime> times() { return times_.read(); }

 private:
  using Passes = std::array<Pass, 2>;  // of an action, or of the two of a pair
  void log_list() const;
  static std::vector<Passes> find_passes(const std::vector<schedule::Action>& list);
  void run_range(size_t begin, size_t end);
  void mark_on_device(const schedule::Action& action);
  void throw_away_prefix();
  void run_pair(const schedule::Action& pair, const Passes& passes);
  void execute(const schedule::Action& action, const Pass& pass);
  void dispatch(const schedule::Action& action, const Pass& pass);
  void compute(const schedule::Action& action, const Pass& pass);
  void run_on_weights(const schedule::Action& action, const Pass& pass);
  void run_forward(const schedule::Action& action);
  void run_backward(const schedule::Action& action);
  void run_head_forward(const schedule::Action& action);
  void run_head_backward(const schedule::Action& action);
  HeadExchange::Wait waits(const schedule::Action& action);
  bool ends_in_head(const Stage& stage) const {
    return head_ != nullptr && stage.index() + 1 == schedule_.stages();
  }
  void count_held(int activations, int weight_operands);
  void finish();
  const StageWithWeights& find(int stage) const;
  Stage& stage(int index) const { return find(index).stage; }

  std::vector<StageWithWeights> stages_;
  comm::Communicator& pipeline_;
  schedule::Schedule schedule_;  // with the list of this rank alone
  std::optional<schedule::Speculation> speculation_;
  comm::Activity* activity_ = nullptr;
  c10::Device device_ = c10::kCPU;  // of the marks that the activity gets
  std::vector<Passes> passes_;      // of this rank's actions

  std::span<const data::Microbatch> microbatches_;
  BoundaryExchange boundaries_;
  std::unique_ptr<HeadLinks> own_links_;  // of a head in parts, if nobody lends them
  std::unique_ptr<HeadExchange> head_;    // of a head in parts
  ActionTimes times_;
  schedule::InFlight peak_;  // of the run
  int in_flight_ = 0;
  int weight_operands_ = 0;
};

}  // namespace pptrain::pipeline
