// The messages of ranks whose sends wait until they are received (WaitModel::blocking): which of them have
// only one end so far. Internal to this folder and to match_messages().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "parallel/schedule/inputs.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

class BlockingMessages {
 public:
  // Calls freed(rank) whenever a rank has no open message any more. The schedule must outlive this; its lists
  // are not read.
  BlockingMessages(const Schedule& schedule, std::function<void(int rank)> freed);

  // The rank's messages of which the other end is not posted.
  int open(int rank) const { return open_[rank]; }

  // The rank has done the action: a send, a receive, or a pass, which posts the messages of a spread head
  // that it makes, and the receives of those that it uses.
  void done(int rank, const Action& action);

  // RECV_HEAD: is it the next one of its kind from that rank?
  bool is_next(const Action& receive_of_head) const;
  // The rank's receives of messages of a spread head that have been sent and are not received.
  std::vector<Action> missing_head_receives(int rank) const;

 private:
  // Of a message from stage to stage, by the pass that makes it.
  enum End : uint8_t { sent = 1, received = 2 };
  // Messages of a spread head of one kind from one rank to another go by ascending microbatch: how many ends
  // are posted.
  struct HeadChannel {
    int sent = 0, received = 0;
  };
  enum class HeadMessage : uint8_t { input, statistics, term };  // made by the last stage's F, by S, by T
  static constexpr size_t head_messages = 3;

  void post(int rank, int other, bool other_is_posted);
  void post_message(int rank, const Action& message);
  void post_head_messages(int rank, const Action& pass);
  void send_head(HeadMessage kind, int from, int to);
  void receive_head(HeadMessage kind, int from, int to);
  void receive_head_up_to(HeadMessage kind, int from, int to, int microbatch);
  static HeadMessage kind_of(const Action& maker);
  int rank_of_maker(const Action& maker) const;
  size_t channel(HeadMessage kind, int from, int to) const;

  const Schedule& s_;
  Inputs inputs_;
  PlacementTable table_;
  std::function<void(int rank)> freed_;
  PassTable<uint8_t> ends_;         // of End
  std::vector<int> open_;           // [rank]
  std::vector<HeadChannel> heads_;  // [kind][from][to]; empty with a whole head
};

}  // namespace pptrain::schedule
