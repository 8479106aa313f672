#include "parallel/pipeline/boundary_exchange.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "core/base/error.h"

namespace pptrain::pipeline {

using schedule::Action;
using schedule::ActionKind;

namespace {

template <typename Map>
auto take_from(Map& map, const typename Map::key_type& key, const char* what) {
  auto node = map.extract(key);
  if (node.empty()) {
    throw Error(fmt::format("no {} for stage {} microbatch {}: the schedule's order is wrong", what,
                            key.first, key.second));
  }
  return std::move(node.mapped());
}

bool goes_forward(ActionKind kind) {
  return kind == ActionKind::forward || kind == ActionKind::send_f || kind == ActionKind::recv_f;
}

}  // namespace

BoundaryExchange::BoundaryExchange(comm::Communicator& pipeline, const schedule::Schedule& schedule,
                                   Empty empty)
    : pipeline_(pipeline), schedule_(schedule), empty_(std::move(empty)) {}

BoundaryExchange::Direction& BoundaryExchange::direction(ActionKind kind) {
  return goes_forward(kind) ? inputs_ : gradients_;
}

at::Tensor BoundaryExchange::take(const Action& pass) {
  Direction& values = direction(pass.kind);
  const Key key{pass.stage, pass.microbatch};
  if (auto node = values.local.extract(key)) return std::move(node.mapped());
  Message message = take_from(values.receives, key, "received tensor");
  wait(message, "", "waits for");
  return std::move(message.tensor);
}

void BoundaryExchange::give(const Action& pass, at::Tensor value) {
  Direction& values = direction(pass.kind);
  const int next = pass.stage + (goes_forward(pass.kind) ? 1 : -1);
  const bool local = schedule_.rank_of(next) == pipeline_.rank();
  at::Tensor& held =
      local ? values.local[{next, pass.microbatch}] : values.made[{pass.stage, pass.microbatch}];
  held = std::move(value);
}

void BoundaryExchange::receive(const Action& receive) {
  at::Tensor tensor = empty_(receive);
  auto work = pipeline_.irecv(tensor, peer(receive));
  direction(receive.kind).receives[{receive.stage, receive.microbatch}] = {std::move(tensor), std::move(work),
                                                                           receive};
  most_posted_ =
      std::max(most_posted_, static_cast<int>(inputs_.receives.size() + gradients_.receives.size()));
}

void BoundaryExchange::send(const Action& action) {
  const Key key{action.stage, action.microbatch};
  post_send(take_from(direction(action.kind).made, key, "computed tensor"), action);
}

void BoundaryExchange::post_send(at::Tensor tensor, const Action& action) {
  auto work = pipeline_.isend(tensor, peer(action));
  sends_.push_back({std::move(tensor), std::move(work), action});
}

void BoundaryExchange::wait(Message& message, const char* activity, const char* what) {
  const comm::ActivityScope waiting(activity_, comm::ActivityKind::wait,
                                    activity_ != nullptr ? activity + in_words(message.action) : "");
  message.work->wait([&] {
    return fmt::format("pipeline rank {} {} {}", pipeline_.rank(), what, in_words(message.action));
  });
}

void BoundaryExchange::forget_sent() {
  std::erase_if(sends_, [](Message& send) { return send.work->done(); });
}

void BoundaryExchange::wait_for_sends() {
  for (Message& send : sends_) wait(send, "the end of ", "waits to finish");
  sends_.clear();
}

void BoundaryExchange::finish() {
  wait_for_sends();
  const auto is_empty = [](const Direction& values) {
    return values.local.empty() && values.made.empty() && values.receives.empty();
  };
  if (!is_empty(inputs_) || !is_empty(gradients_))
    throw Error("the schedule left values behind: it is not complete");
}

void BoundaryExchange::discard(std::span<const Action> drain) {
  for (const Action& action : drain) {
    if (schedule::is_receive(action.kind)) {
      receive(action);
    } else {
      post_send(empty_(action), action);
    }
  }
  for (Direction* values : {&inputs_, &gradients_}) {
    for (auto& [key, receive] : values->receives) wait(receive, "", "waits for");
  }
  wait_for_sends();
  inputs_ = {};
  gradients_ = {};
}

}  // namespace pptrain::pipeline
