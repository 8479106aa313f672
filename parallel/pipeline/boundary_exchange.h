// The tensors that cross the boundaries between a rank's stages and their neighbours, on this rank or others.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "parallel/comm/communicator.h"
#include "parallel/comm/liveness/activity.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::pipeline {

class BoundaryExchange {
 public:
  // empty: memory for the tensor of a send or receive. Both references must outlive this; no list is read.
  using Empty = std::function<at::Tensor(const schedule::Action& message)>;
  BoundaryExchange(comm::Communicator& pipeline, const schedule::Schedule& schedule, Empty empty);

  void report_to(comm::Activity* activity) { activity_ = activity; }

  // RECV_F or RECV_B: posts the receive.
  void receive(const schedule::Action& action);
  // SEND_F or SEND_B of what its pass gave.
  void send(const schedule::Action& action);
  // The input of F, or the gradient of the output for B or I. Waits for it.
  at::Tensor take(const schedule::Action& pass);
  // The output of F, or the gradient of the input by B or I.
  void give(const schedule::Action& pass, at::Tensor value);

  void forget_sent();  // sends that have left
  // Waits for all sends. Throws Error if a value was not taken.
  void finish();
  // Ends a part of a list: completes messages that only one side has begun with those of `drain`, and drops
  // all values.
  void discard(std::span<const schedule::Action> drain);

  // The most receives that were posted and not taken, since count_anew().
  int most_posted() const { return most_posted_; }
  void count_anew() { most_posted_ = 0; }

 private:
  using Key = std::pair<int, int>;  // stage, microbatch
  struct Message {                  // under way
    at::Tensor tensor;
    std::unique_ptr<comm::Work> work;
    schedule::Action action;  // that sends or receives it
  };
  // Values of one direction, between actions.
  struct Direction {
    std::map<Key, at::Tensor> local;  // of the stage that takes it, which this rank has
    std::map<Key, at::Tensor> made;   // of the stage that made it, for another rank
    std::map<Key, Message> receives;  // of the stage that takes it
  };

  Direction& direction(schedule::ActionKind kind);
  void post_send(at::Tensor tensor, const schedule::Action& action);
  void wait(Message& message, const char* activity, const char* what);
  void wait_for_sends();
  int peer(const schedule::Action& message) const {
    return schedule_.rank_of(schedule::other_stage(message));
  }

  comm::Communicator& pipeline_;
  const schedule::Schedule& schedule_;
  Empty empty_;
  comm::Activity* activity_ = nullptr;
  Direction inputs_, gradients_;
  std::deque<Message> sends_;
  int most_posted_ = 0;
};

}  // namespace pptrain::pipeline
