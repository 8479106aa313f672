#include "parallel/schedule/proof/replay.h"

namespace pptrain::schedule {

enum Replay::State : uint8_t { computed_f = 1, arrived_f = 2, computed_b = 4, arrived_b = 8 };

Replay::Replay(const Schedule& schedule, ReceiveModel model, bool by_messages)
    : schedule_(schedule), model_(model), table_(schedule), by_message_(table_.crosses) {
  if (!by_messages) by_message_.assign(by_message_.size(), 0);
  states_.assign(schedule.cells(), 0);
  if (schedule.spread_head) {
    head_f_.assign(static_cast<size_t>(schedule.microbatches), 0);
    head_b_ = head_f_;
  }
  next_.assign(schedule.ranks, 0);
  for (const auto& list : schedule.actions) ends_.push_back(list.size());
  queued_.assign(schedule.ranks, 0);
}

bool Replay::part_ready(const Action& action) const {
  const int stage = action.stage;
  const int mb = action.microbatch;
  switch (action.kind) {
    case ActionKind::forward:
      return stage == 0 || is(arrived_f, stage - 1, mb);
    case ActionKind::backward:
    case ActionKind::backward_input:
      if (!is(computed_f, stage, mb)) return false;
      if (stage + 1 < schedule_.stages()) return is(arrived_b, stage + 1, mb);
      return !schedule_.spread_head || head_done(head_b_, mb);
    case ActionKind::head_forward:
      return is(computed_f, schedule_.stages() - 1, mb);
    case ActionKind::head_backward:
      return head_done(head_f_, mb);
    case ActionKind::backward_weight:
    case ActionKind::send_b:
      return is(computed_b, stage, mb);
    case ActionKind::send_f:
      return is(computed_f, stage, mb);
    case ActionKind::recv_f:
      return model_ == ReceiveModel::at_consumer || is(arrived_f, stage - 1, mb);
    case ActionKind::recv_b:
      return model_ == ReceiveModel::at_consumer || is(arrived_b, stage + 1, mb);
    default:
      return true;
  }
}

void Replay::part_done(const Action& action) {
  const int stage = action.stage;
  const auto mark = [&](State state) { states_[schedule_.cell(stage, action.microbatch)] |= state; };
  switch (action.kind) {
    case ActionKind::forward:
      mark(computed_f);
      if (stage + 1 == schedule_.stages()) return schedule_.spread_head ? wake_all() : void();
      if (by_message_[stage]) return;
      [[fallthrough]];
    case ActionKind::send_f:
      mark(arrived_f);
      return wake(table_.rank_of[stage + 1]);
    case ActionKind::backward:
    case ActionKind::backward_input:
      mark(computed_b);
      if (stage == 0 || by_message_[stage - 1]) return;
      [[fallthrough]];
    case ActionKind::send_b:
      mark(arrived_b);
      return wake(table_.rank_of[stage - 1]);
    case ActionKind::head_forward:
      return count_head(head_f_, action.microbatch);
    case ActionKind::head_backward:
      return count_head(head_b_, action.microbatch);
    default:
      return;
  }
}

void Replay::count_head(std::vector<int>& ranks, int mb) {
  ++ranks[static_cast<size_t>(mb)];
  if (head_done(ranks, mb)) wake_all();
}

void Replay::wake_all() {
  for (int rank = 0; rank < schedule_.ranks; ++rank) wake(rank);
}

void Replay::wake(int rank) {
  if (queued_[rank]) return;
  queued_[rank] = 1;
  queue_.push_back(rank);
}

}  // namespace pptrain::schedule
