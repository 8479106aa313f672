#include "parallel/schedule/proof/blocking_messages.h"

#include <utility>

namespace pptrain::schedule {

BlockingMessages::BlockingMessages(const Schedule& schedule, std::function<void(int rank)> freed)
    : s_(schedule), inputs_(schedule), table_(schedule), freed_(std::move(freed)), ends_(schedule) {
  const auto ranks = static_cast<size_t>(schedule.ranks);
  open_.resize(ranks);
  if (schedule.spread_head) heads_.resize(head_messages * ranks * ranks);
}

void BlockingMessages::done(int rank, const Action& action) {
  if (is_send(action.kind) || is_receive(action.kind)) post_message(rank, action);
  if (s_.spread_head) post_head_messages(rank, action);
}

// The rank posts its end.
void BlockingMessages::post(int rank, int other, bool other_is_posted) {
  if (!other_is_posted) {
    ++open_[rank];
  } else if (--open_[other] == 0) {
    freed_(other);
  }
}

void BlockingMessages::post_message(int rank, const Action& message) {
  const bool sends = is_send(message.kind);
  uint8_t& ends = ends_[sends ? pass_of(message) : inputs_.of(pass_of(message))->pass];
  post(rank, table_.rank_of[other_stage(message)], (ends & (sends ? received : sent)) != 0);
  ends |= sends ? sent : received;
}

void BlockingMessages::post_head_messages(int rank, const Action& pass) {
  const int last_stage = s_.stages() - 1, last = table_.rank_of[last_stage], mb = pass.microbatch;
  const auto for_others = [&](auto&& visit) {
    for (int other = 0; other < s_.ranks; ++other)
      if (other != rank) visit(other);
  };
  if (pass.kind == ActionKind::recv_head) {
    const Action maker = maker_of(pass);
    receive_head(kind_of(maker), rank_of_maker(maker), rank);
  } else if (pass.kind == ActionKind::head_forward) {
    if (rank != last) receive_head_up_to(HeadMessage::input, last, rank, mb);
    for_others([&](int other) { send_head(HeadMessage::statistics, rank, other); });
  } else if (pass.kind == ActionKind::head_backward) {
    for_others([&](int other) { receive_head_up_to(HeadMessage::statistics, other, rank, mb); });
    if (rank != last && !s_.forward_only) send_head(HeadMessage::term, rank, last);
  } else if (pass.stage == last_stage && pass.kind == ActionKind::forward) {
    for_others([&](int other) { send_head(HeadMessage::input, last, other); });
  } else if (pass.stage == last_stage && is_gradient(pass.kind)) {
    for_others([&](int other) { receive_head_up_to(HeadMessage::term, other, last, mb); });
  }
}

void BlockingMessages::send_head(HeadMessage kind, int from, int to) {
  HeadChannel& ends = heads_[channel(kind, from, to)];
  post(from, to, ends.received > ends.sent);
  ++ends.sent;
}

void BlockingMessages::receive_head(HeadMessage kind, int from, int to) {
  HeadChannel& ends = heads_[channel(kind, from, to)];
  post(to, from, ends.sent > ends.received);
  ++ends.received;
}

void BlockingMessages::receive_head_up_to(HeadMessage kind, int from, int to, int microbatch) {
  while (heads_[channel(kind, from, to)].received <= microbatch) receive_head(kind, from, to);
}

bool BlockingMessages::is_next(const Action& receive_of_head) const {
  const Action maker = maker_of(receive_of_head);
  const size_t place = channel(kind_of(maker), rank_of_maker(maker), receive_of_head.stage);
  return heads_[place].received == receive_of_head.microbatch;
}

std::vector<Action> BlockingMessages::missing_head_receives(int rank) const {
  std::vector<Action> missing;
  if (heads_.empty()) return missing;
  const auto add = [&](HeadMessage kind, int from, const auto& make) {
    const HeadChannel& ends = heads_[channel(kind, from, rank)];
    for (int mb = ends.received; mb < ends.sent; ++mb) missing.push_back(receive_of_head(rank, make(mb)));
  };
  for (int from = 0; from < s_.ranks; ++from) {
    if (from == rank) continue;
    add(HeadMessage::input, from, [&](int mb) { return forward(s_.stages() - 1, mb); });
    add(HeadMessage::statistics, from, [&](int mb) { return head_forward(from, mb); });
    add(HeadMessage::term, from, [&](int mb) { return head_backward(from, mb); });
  }
  return missing;
}

BlockingMessages::HeadMessage BlockingMessages::kind_of(const Action& maker) {
  if (maker.kind == ActionKind::forward) return HeadMessage::input;
  return maker.kind == ActionKind::head_forward ? HeadMessage::statistics : HeadMessage::term;
}

int BlockingMessages::rank_of_maker(const Action& maker) const {
  return is_of_head(maker.kind) ? maker.stage : table_.rank_of[maker.stage];
}

size_t BlockingMessages::channel(HeadMessage kind, int from, int to) const {
  return (static_cast<size_t>(kind) * s_.ranks + from) * s_.ranks + to;
}

}  // namespace pptrain::schedule
