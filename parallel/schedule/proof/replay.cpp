#include "parallel/schedule/proof/replay.h"

#include <optional>

namespace pptrain::schedule {

Replay::Replay(const Schedule& schedule, WaitModel model, bool by_messages)
    : schedule_(schedule), model_(model), by_messages_(by_messages), inputs_(schedule), states_(schedule) {
  if (schedule.spread_head) parts_done_.resize(2 * static_cast<size_t>(schedule.microbatches));
  if (model == WaitModel::blocking) {
    const auto ranks = static_cast<size_t>(schedule.ranks);
    open_.resize(ranks);
    if (schedule.spread_head) heads_.resize(3 * ranks * ranks);
  }
  next_.assign(schedule.ranks, 0);
  queued_.assign(schedule.ranks, 0);
}

bool Replay::part_ready(const Action& action) const {
  if (is_compute(action.kind)) return has_input(action);
  if (is_send(action.kind)) return (states_[pass_of(action)] & made) != 0;
  if (action.kind == ActionKind::recv_head && !heads_.empty()) {
    const Action maker = maker_of(action);
    return channel(kind_of(maker), rank_of_maker(maker), action.stage).received == action.microbatch;
  }
  return model_ != WaitModel::in_place || !is_receive(action.kind) || has_input(pass_of(action));
}

bool Replay::has_input(const Action& pass) const {
  const std::optional<Input> input = inputs_.of(pass);
  return !input || (states_[input->pass] & (input->pass.stage == pass.stage ? made : arrived)) != 0;
}

void Replay::part_done(int rank, const Action& action) {
  if (model_ == WaitModel::blocking) {
    if (is_send(action.kind) || is_receive(action.kind)) post_message(rank, action);
    if (schedule_.spread_head) post_head_messages(rank, action);
  }
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

void Replay::post(int rank, int other, bool matched) {
  if (!matched) {
    ++open_[rank];
  } else if (--open_[other] == 0) {
    wake(other);
  }
}

void Replay::post_message(int rank, const Action& message) {
  const Action maker = is_send(message.kind) ? pass_of(message) : inputs_.of(pass_of(message))->pass;
  uint8_t& state = states_[maker];
  const State own = is_send(message.kind) ? arrived : awaited, others = own == arrived ? awaited : arrived;
  post(rank, schedule_.rank_of(other_stage(message)), (state & others) != 0);
  state |= own;
}

Replay::HeadMessage Replay::kind_of(const Action& maker) const {
  if (maker.kind == ActionKind::forward) return HeadMessage::input;
  return maker.kind == ActionKind::head_forward ? HeadMessage::statistics : HeadMessage::term;
}

int Replay::rank_of_maker(const Action& maker) const {
  return is_of_head(maker.kind) ? maker.stage : schedule_.rank_of(maker.stage);
}

void Replay::send_head(HeadMessage kind, int from, int to) {
  HeadChannel& ends = channel(kind, from, to);
  post(from, to, ends.received > ends.sent);
  ++ends.sent;
}

void Replay::receive_head(HeadMessage kind, int from, int to) {
  HeadChannel& ends = channel(kind, from, to);
  post(to, from, ends.sent > ends.received);
  ++ends.received;
}

void Replay::receive_up_to(HeadMessage kind, int from, int to, int microbatch) {
  while (channel(kind, from, to).received <= microbatch) receive_head(kind, from, to);
}

void Replay::post_head_messages(int rank, const Action& pass) {
  const int last_stage = schedule_.stages() - 1, last = schedule_.rank_of(last_stage), mb = pass.microbatch;
  const auto for_others = [&](auto&& visit) {
    for (int other = 0; other < schedule_.ranks; ++other)
      if (other != rank) visit(other);
  };
  if (pass.kind == ActionKind::recv_head) {
    const Action maker = maker_of(pass);
    return receive_head(kind_of(maker), rank_of_maker(maker), rank);
  }
  if (pass.kind == ActionKind::head_forward) {
    if (rank != last) receive_up_to(HeadMessage::input, last, rank, mb);
    for_others([&](int other) { send_head(HeadMessage::statistics, rank, other); });
  } else if (pass.kind == ActionKind::head_backward) {
    for_others([&](int other) { receive_up_to(HeadMessage::statistics, other, rank, mb); });
    if (rank != last && !schedule_.forward_only) send_head(HeadMessage::term, rank, last);
  } else if (pass.stage == last_stage && pass.kind == ActionKind::forward) {
    for_others([&](int other) { send_head(HeadMessage::input, last, other); });
  } else if (pass.stage == last_stage && is_gradient(pass.kind)) {
    for_others([&](int other) { receive_up_to(HeadMessage::term, other, last, mb); });
  }
}

std::vector<Action> Replay::missing_head_receives(int rank) const {
  std::vector<Action> missing;
  if (heads_.empty()) return missing;
  const int last_stage = schedule_.stages() - 1;
  const auto add = [&](HeadMessage kind, int from, const auto& make) {
    const HeadChannel& ends = channel(kind, from, rank);
    for (int mb = ends.received; mb < ends.sent; ++mb) missing.push_back(receive_of_head(rank, make(mb)));
  };
  for (int from = 0; from < schedule_.ranks; ++from) {
    if (from == rank) continue;
    add(HeadMessage::input, from, [&](int mb) { return forward(last_stage, mb); });
    add(HeadMessage::statistics, from, [&](int mb) { return head_forward(from, mb); });
    add(HeadMessage::term, from, [&](int mb) { return head_backward(from, mb); });
  }
  return missing;
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
