// That what goes from rank to rank is sent and received once, in time and in one order.
#include <spdlog/fmt/fmt.h>

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "parallel/schedule/proof/places.h"

namespace pptrain::schedule {
namespace {

// What one stage sends to a neighbouring stage, once for each microbatch. The sender has done `compute`
// before it sends, the receiver does `compute` after it has received.
struct Messages {
  int from;
  int to;
  Places::What compute;
  Places::What send;
  Places::What receive;
  ActionKind send_kind;
  ActionKind receive_kind;
};

Messages forwards_over(int boundary) {
  return {.from = boundary,
          .to = boundary + 1,
          .compute = Places::forward,
          .send = Places::send_f,
          .receive = Places::recv_f,
          .send_kind = ActionKind::send_f,
          .receive_kind = ActionKind::recv_f};
}

Messages backwards_over(int boundary) {
  return {.from = boundary + 1,
          .to = boundary,
          .compute = Places::gradient,
          .send = Places::send_b,
          .receive = Places::recv_b,
          .send_kind = ActionKind::send_b,
          .receive_kind = ActionKind::recv_b};
}

void check_there(const Places& places, Places::What what, const Action& action) {
  if (places.of(what, action.stage, action.microbatch) != Places::absent) return;
  const int rank = places.rank_of(action.stage);
  refuse(places.schedule(), rank, places.schedule().actions[rank].size(),
         fmt::format("{} is missing", to_string(action)));
}

void check_message(const Places& places, const Messages& m, int mb) {
  check_there(places, m.send, {m.send_kind, m.from, mb});
  check_there(places, m.receive, {m.receive_kind, m.to, mb});
  const int32_t sent = places.of(m.send, m.from, mb);
  const int32_t made = places.of(m.compute, m.from, mb);
  if (sent < made) {
    refuse(places.schedule(), places.rank_of(m.from), sent,
           fmt::format("it sends what is computed only at step {}", made));
  }
  const int32_t received = places.of(m.receive, m.to, mb);
  const int32_t used = places.of(m.compute, m.to, mb);
  if (received > used) {
    refuse(places.schedule(), places.rank_of(m.to), received,
           fmt::format("it receives what step {} has needed already", used));
  }
}

void check_no_message(const Places& places, const Messages& m, int mb) {
  for (const auto& [what, stage] : {std::pair(m.send, m.from), std::pair(m.receive, m.to)}) {
    const int32_t place = places.of(what, stage, mb);
    if (place == Places::absent) continue;
    const int rank = places.rank_of(stage);
    if (places.rank_of(m.from) != places.rank_of(m.to)) {
      refuse(places.schedule(), rank, place, "a forward-only schedule sends no gradients");
    }
    refuse(places.schedule(), rank, place,
           fmt::format("stages {} and {} are on the same rank and need no message", m.from, m.to));
  }
}

void check_no_message_beyond_the_ends(const Places& places) {
  const Schedule& s = places.schedule();
  const auto check_none = [&](Places::What what, int stage, const char* why) {
    for (int mb = 0; mb < s.microbatches; ++mb) {
      const int32_t place = places.of(what, stage, mb);
      if (place != Places::absent) refuse(s, places.rank_of(stage), place, why);
    }
  };
  check_none(Places::recv_f, 0, "the first stage has no stage before it to receive from");
  check_none(Places::send_b, 0, "the first stage has no stage before it to send to");
  check_none(Places::send_f, s.stages() - 1, "the last stage has no stage after it to send to");
  check_none(Places::recv_b, s.stages() - 1, "the last stage has no stage after it to receive from");
}

// Numbers the channels (directed pairs of ranks) that the boundaries use.
class Channels {
 public:
  explicit Channels(const Places& places) {
    std::unordered_map<int64_t, int> known;
    const auto number = [&](int from, int to) {
      const int64_t key =
          static_cast<int64_t>(places.rank_of(from)) * places.schedule().ranks + places.rank_of(to);
      return known.try_emplace(key, static_cast<int>(known.size())).first->second;
    };
    for (int boundary = 0; boundary + 1 < places.schedule().stages(); ++boundary) {
      up_.push_back(number(boundary, boundary + 1));
      down_.push_back(number(boundary + 1, boundary));
    }
    count_ = known.size();
  }

  size_t count() const { return count_; }
  // Of a send or a receive.
  int of(const Action& action) const {
    switch (action.kind) {
      case ActionKind::send_f:
        return up_[action.stage];
      case ActionKind::recv_f:
        return up_[action.stage - 1];
      case ActionKind::send_b:
        return down_[action.stage - 1];
      default:
        return down_[action.stage];
    }
  }

 private:
  std::vector<int> up_, down_;  // [boundary]
  size_t count_ = 0;
};

void check_channels(const Places& places) {
  const Schedule& s = places.schedule();
  const Channels channels(places);
  std::vector<int32_t> last_sent(channels.count(), Places::absent);  // of what was received last, its send
  for (int rank = 0; rank < s.ranks; ++rank) {
    const auto& list = s.actions[rank];
    for (size_t i = 0; i < list.size(); ++i) {
      const Action& a = list[i];
      if (!is_receive(a.kind)) continue;
      const bool is_f = a.kind == ActionKind::recv_f;
      const int from = is_f ? a.stage - 1 : a.stage + 1;
      const int32_t sent = places.of(is_f ? Places::send_f : Places::send_b, from, a.microbatch);
      int32_t& last = last_sent[channels.of(a)];
      if (sent < last) {
        refuse(s, rank, i,
               fmt::format("rank {} sends it at step {}, before what this rank has received from it already "
                           "(sent at step {}); receives must come in the order of the sends",
                           places.rank_of(from), sent, last));
      }
      last = sent;
    }
  }
}

}  // namespace

void check_messages(const Places& places) {
  const Schedule& s = places.schedule();
  for (int boundary = 0; boundary + 1 < s.stages(); ++boundary) {
    const bool crosses = places.crosses_ranks(boundary);
    const Messages forwards = forwards_over(boundary);
    const Messages backwards = backwards_over(boundary);
    for (int mb = 0; mb < s.microbatches; ++mb) {
      (crosses ? check_message : check_no_message)(places, forwards, mb);
      (crosses && !s.forward_only ? check_message : check_no_message)(places, backwards, mb);
    }
  }
  check_no_message_beyond_the_ends(places);
  check_channels(places);
}

}  // namespace pptrain::schedule
