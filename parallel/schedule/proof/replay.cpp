#include "parallel/schedule/proof/replay.h"

#include <optional>

namespace pptrain::schedule {

Replay::Replay(const Schedule& schedule, WaitModel model, bool by_messages)
    : schedule_(schedule), model_(model), by_messages_(by_messages), inputs_(schedule), states_(schedule) {
  parts_done_.resize(2 * static_cast<size_t>(schedule.microbatches));
  if (model == WaitModel::blocking) blocking_.emplace(schedule, [this](int rank) { wake(rank); });
  next_.assign(schedule.ranks, 0);
  queued_.assign(schedule.ranks, 0);
}

bool Replay::part_ready(const Action& action) const {
  if (is_compute(action.kind)) return has_input(action);
  if (is_send(action.kind)) return (states_[pass_of(action)] & made) != 0;
  if (action.kind == ActionKind::recv_head) return !blocking_ || blocking_->is_next(action);
  return model_ != WaitModel::in_place || !is_receive(action.kind) || has_input(pass_of(action));
}

bool Replay::has_input(const Action& pass) const {
  const std::optional<Input> input = inputs_.of(pass);
  return !input || (states_[input->pass] & (input->pass.stage == pass.stage ? made : arrived)) != 0;
}

void Replay::part_done(int rank, const Action& action) {
  if (blocking_) blocking_->done(rank, action);
  if (is_send(action.kind)) return hand_on(pass_of(action));
  if (!is_compute(action.kind) || action.kind == ActionKind::backward_weight) return;
  if (is_of_head(action.kind)) {
    int& parts =
        parts_done_[2 * static_cast<size_t>(action.microbatch) + (action.kind == ActionKind::head_backward)];
    if (++parts < schedule_.ranks) return;
  }
  states_[action] |= made;
  if (!by_messages_ || !inputs_.crosses(action)) hand_on(action);
}

void Replay::hand_on(const Action& pass) {
  states_[pass] |= arrived;
  inputs_.for_each_user(pass, [&](int rank, int) { wake(rank); });
}

void Replay::wake(int rank) {
  if (queued_[rank]) return;
  queued_[rank] = 1;
  queue_.push_back(rank);
}

}  // namespace pptrain::schedule
