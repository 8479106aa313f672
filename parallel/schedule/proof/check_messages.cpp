// Checks that what goes from rank to rank is sent and received once, in time and in one order.
#include <spdlog/fmt/fmt.h>

#include <cstdint>
#include <map>

#include "parallel/schedule/proof/places.h"

namespace pptrain::schedule {
namespace {

// What one stage sends to a neighbouring stage, once for each microbatch. The sender has done `compute`
// before it sends, the receiver does `compute` after it has received.
struct Messages {
  int from;
  int to;
  Places::What compute;
  ActionKind send;
  ActionKind receive;
};

void check_there(const Places& places, const Action& message) {
  if (places.of(message) != Places::absent) return;
  const int rank = places.rank_of(message.stage);
  refuse(places.schedule(), rank, places.schedule().actions[rank].size(),
         fmt::format("{} is missing", to_string(message)));
}

void check_message(const Places& places, const Messages& m, int mb) {
  const Action send{m.send, m.from, mb}, receive{m.receive, m.to, mb};
  check_there(places, send);
  check_there(places, receive);
  const int32_t sent = places.of(send);
  const int32_t made = places.of(m.compute, m.from, mb);
  if (sent < made) {
    refuse(places.schedule(), places.rank_of(m.from), sent,
           fmt::format("it sends what is computed only at step {}", made));
  }
  const int32_t received = places.of(receive);
  const int32_t used = places.of(m.compute, m.to, mb);
  if (received > used) {
    refuse(places.schedule(), places.rank_of(m.to), received,
           fmt::format("it receives what step {} has needed already", used));
  }
}

void check_no_message(const Places& places, const Messages& m, int mb) {
  for (const Action& message : {Action{m.send, m.from, mb}, Action{m.receive, m.to, mb}}) {
    const int32_t place = places.of(message);
    if (place == Places::absent) continue;
    const int rank = places.rank_of(message.stage);
    if (places.rank_of(m.from) != places.rank_of(m.to)) {
      refuse(places.schedule(), rank, place, "a forward-only schedule sends no gradients");
    }
    refuse(places.schedule(), rank, place,
           fmt::format("stages {} and {} are on the same rank and need no message", m.from, m.to));
  }
}

void check_no_message_beyond_the_ends(const Places& places) {
  const Schedule& s = places.schedule();
  const auto check_none = [&](ActionKind kind, int stage, const char* why) {
    for (int mb = 0; mb < s.microbatches; ++mb) {
      const int32_t place = places.of({kind, stage, mb});
      if (place != Places::absent) refuse(s, places.rank_of(stage), place, why);
    }
  };
  const int last = s.stages() - 1;
  check_none(ActionKind::recv_f, 0, "the first stage has no stage before it to receive from");
  check_none(ActionKind::send_b, 0, "the first stage has no stage before it to send to");
  check_none(ActionKind::send_f, last, "the last stage has no stage after it to send to");
  check_none(ActionKind::recv_b, last, "the last stage has no stage after it to receive from");
}

// The receives of each channel (directed pair of ranks) in the order of its sends.
void check_channels(const Places& places) {
  const Schedule& s = places.schedule();
  for (int rank = 0; rank < s.ranks; ++rank) {
    std::map<int, int32_t> last_sent;  // [rank] the send of what was received from it last
    const auto& list = s.actions[rank];
    for (size_t i = 0; i < list.size(); ++i) {
      const Action& a = list[i];
      if (!is_receive(a.kind)) continue;
      const ActionKind send = a.kind == ActionKind::recv_f ? ActionKind::send_f : ActionKind::send_b;
      const int from = places.rank_of(other_stage(a));
      const int32_t sent = places.of({send, other_stage(a), a.microbatch});
      int32_t& last = last_sent.try_emplace(from, Places::absent).first->second;
      if (sent < last) {
        refuse(s, rank, i,
               fmt::format("rank {} sends it at step {}, before what this rank has received from it already "
                           "(sent at step {}); receives must come in the order of the sends",
                           from, sent, last));
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
    const Messages forwards{boundary, boundary + 1, Places::forward, ActionKind::send_f, ActionKind::recv_f};
    const Messages backwards{boundary + 1, boundary, Places::gradient, ActionKind::send_b,
                             ActionKind::recv_b};
    for (int mb = 0; mb < s.microbatches; ++mb) {
      (crosses ? check_message : check_no_message)(places, forwards, mb);
      (crosses && !s.forward_only ? check_message : check_no_message)(places, backwards, mb);
    }
  }
  check_no_message_beyond_the_ends(places);
  check_channels(places);
}

}  // namespace pptrain::schedule
