#include "parallel/schedule/proof/replay.h"

namespace pptrain::schedule {

Replay::Replay(const Schedule& schedule, ReceiveModel model)
    : schedule_(schedule), model_(model), microbatches_(schedule.microbatches) {
  const int stages = schedule.stages();
  const size_t cells = static_cast<size_t>(stages) * static_cast<size_t>(microbatches_);
  const bool messages = schedule.has_communication();
  for (int stage = 0; stage < stages; ++stage) {
    rank_of_.push_back(schedule.rank_of(stage));
    by_message_.push_back(messages && stage + 1 < stages && schedule.crosses_ranks(stage));
  }
  forward_.assign(cells, 0);
  backward_.assign(cells, 0);
  computed_f_.assign(cells, 0);
  computed_b_.assign(cells, 0);
  next_.assign(schedule.ranks, 0);
  for (const auto& list : schedule.actions) ends_.push_back(list.size());
  queued_.assign(schedule.ranks, 0);
}

bool Replay::ready(const Action& action) const {
  const int stage = action.stage;
  const int mb = action.microbatch;
  switch (action.kind) {
    case ActionKind::forward:
      return stage == 0 || forward_[at(stage - 1, mb)];
    case ActionKind::backward:
    case ActionKind::backward_input:
      return computed_f_[at(stage, mb)] && (stage + 1 == schedule_.stages() || backward_[at(stage + 1, mb)]);
    case ActionKind::backward_weight:
      return computed_b_[at(stage, mb)];
    case ActionKind::send_f:
      return computed_f_[at(stage, mb)];
    case ActionKind::send_b:
      return computed_b_[at(stage, mb)];
    case ActionKind::recv_f:
      return model_ == ReceiveModel::at_consumer || forward_[at(stage - 1, mb)];
    case ActionKind::recv_b:
      return model_ == ReceiveModel::at_consumer || backward_[at(stage + 1, mb)];
    case ActionKind::overlapped_pair:
      for (const Action& part : action.pair) {
        if (!ready(part)) return false;
      }
      return true;
    default:
      return true;
  }
}

void Replay::done(const Action& action) {
  const int stage = action.stage;
  const int mb = action.microbatch;
  switch (action.kind) {
    case ActionKind::forward:
      computed_f_[at(stage, mb)] = 1;
      if (stage + 1 == schedule_.stages() || by_message_[stage]) return;
      [[fallthrough]];
    case ActionKind::send_f:
      forward_[at(stage, mb)] = 1;
      return wake(rank_of_[stage + 1]);
    case ActionKind::backward:
    case ActionKind::backward_input:
      computed_b_[at(stage, mb)] = 1;
      if (stage == 0 || by_message_[stage - 1]) return;
      [[fallthrough]];
    case ActionKind::send_b:
      backward_[at(stage, mb)] = 1;
      return wake(rank_of_[stage - 1]);
    case ActionKind::overlapped_pair:
      for (const Action& part : action.pair) done(part);
      return;
    default:
      return;
  }
}

void Replay::wake(int rank) {
  if (queued_[rank]) return;
  queued_[rank] = 1;
  queue_.push_back(rank);
}

}  // namespace pptrain::schedule
