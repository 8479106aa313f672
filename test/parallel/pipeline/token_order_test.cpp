// Runs the orders of all ranks with channels that keep the order of their messages.
#include "parallel/pipeline/token_order.h"

#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "test/support/catch.h"

using namespace pptrain;
using pipeline::TokenAction;
using pipeline::TokenOrder;

namespace {

using Message = std::tuple<int, int, int64_t>;  // stage that reads it (stages(): a choice), group, round

schedule::Schedule placement(int ranks, int stages_per_rank, schedule::Placement kind) {
  schedule::Schedule s;
  s.ranks = ranks;
  s.stages_per_rank = stages_per_rank;
  s.placement = kind;
  return s;
}

// All ranks in lockstep: each does its next action if its messages have come.
class World {
 public:
  World(const schedule::Schedule& schedule, int groups) : schedule_(schedule), groups_(groups) {
    for (int rank = 0; rank < schedule.ranks; ++rank) {
      orders_.emplace_back(schedule, rank, groups);
      next_.push_back(orders_.back().next());
      posted_.emplace_back();
      heard_.emplace_back(static_cast<size_t>(groups), -1);
    }
  }

  // The number of ranks that did something.
  int tick() {
    std::vector<std::pair<std::pair<int, int>, Message>> sent;
    int busy = 0;
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      post_choices(rank);
      if (!run(rank, sent)) continue;
      ++busy;
      next_[rank] = orders_[rank].next();
    }
    for (auto& [channel, message] : sent) channels_[channel].push_back(message);
    return busy;
  }

  int64_t rounds(int rank, int group) const { return done_.at({rank, group}); }

 private:
  void post_choices(int rank) {
    while (next_[rank].is_choice) {
      posted_[rank].push_back({schedule_.stages(), next_[rank].group, next_[rank].round});
      next_[rank] = orders_[rank].next();
    }
  }

  // Receives are matched in the order in which they are posted.
  bool receive(int rank, int source, const Message& wanted) {
    auto& channel = channels_[{source, rank}];
    if (channel.empty()) return false;
    REQUIRE(channel.front() == wanted);
    channel.pop_front();
    return true;
  }

  // Earlier posted choices come first on the last stage's channel.
  bool hear(int rank, int group, int64_t round) {
    const int source = schedule_.rank_of(schedule_.stages() - 1);
    while (heard_[rank][static_cast<size_t>(group)] < round) {
      REQUIRE(!posted_[rank].empty());
      const Message message = posted_[rank].front();
      if (!receive(rank, source, message)) return false;
      heard_[rank][static_cast<size_t>(std::get<1>(message))] = std::get<2>(message);
      posted_[rank].pop_front();
    }
    return true;
  }

  bool run(int rank, std::vector<std::pair<std::pair<int, int>, Message>>& sent) {
    const TokenAction action = next_[rank];
    const int last = schedule_.stages() - 1, last_rank = schedule_.rank_of(last);
    if (rank != last_rank && !hear(rank, action.group, action.round - 1)) return false;
    if (action.stage > 0 && schedule_.rank_of(action.stage - 1) != rank) {
      const int source = schedule_.rank_of(action.stage - 1);
      if (source == last_rank && !posted_[rank].empty()) {
        // Messages that were posted earlier come before this one.
        const Message choice = posted_[rank].back();
        if (!hear(rank, std::get<1>(choice), std::get<2>(choice))) return false;
      }
      if (!receive(rank, source, {action.stage, action.group, action.round})) return false;
    } else if (action.stage > 0) {
      REQUIRE(ran_.contains({action.stage - 1, action.group, action.round}));
    } else if (action.round > 0 && rank == last_rank) {
      REQUIRE(ran_.contains({last, action.group, action.round - 1}));
    }
    ran_.insert({action.stage, action.group, action.round});
    ++done_[{rank, action.group}];
    if (action.stage == last) {
      for (int other = 0; other < schedule_.ranks; ++other) {
        if (other != rank) sent.push_back({{rank, other}, {last + 1, action.group, action.round}});
      }
    } else if (schedule_.rank_of(action.stage + 1) != rank) {
      sent.push_back(
          {{rank, schedule_.rank_of(action.stage + 1)}, {action.stage + 1, action.group, action.round}});
    }
    return true;
  }

  schedule::Schedule schedule_;
  int groups_;
  std::vector<TokenOrder> orders_;
  std::vector<TokenAction> next_;            // [rank]
  std::vector<std::deque<Message>> posted_;  // [rank] receives of choices, in order
  std::vector<std::vector<int64_t>> heard_;  // [rank][group] round
  std::map<std::pair<int, int>, std::deque<Message>> channels_;
  std::set<Message> ran_;
  std::map<std::pair<int, int>, int64_t> done_;  // forwards of a rank for a group
};

}  // namespace

TEST_CASE("no rank waits for ever, and messages are received in the order of their sends", "[token_order]") {
  using schedule::Placement;
  const auto [kind, v] =
      GENERATE(std::pair{Placement::loop, 1}, std::pair{Placement::loop, 2}, std::pair{Placement::loop, 3},
               std::pair{Placement::v, 2}, std::pair{Placement::v, 4});
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const int groups : {1, 2, 3, 4, 7, 9}) {
      CAPTURE(ranks, groups);
      World world(placement(ranks, v, kind), groups);
      const int ticks = 40 * v * ranks * ((groups + ranks - 1) / ranks);
      for (int tick = 0; tick < ticks; ++tick) world.tick();
      for (int rank = 0; rank < ranks; ++rank) {
        for (int group = 0; group < groups; ++group) CHECK(world.rounds(rank, group) >= 20 * v);
      }
    }
  }
}

TEST_CASE("with as many groups as ranks every rank is always busy", "[token_order]") {
  using schedule::Placement;
  const auto [kind, v] =
      GENERATE(std::pair{Placement::loop, 1}, std::pair{Placement::loop, 2}, std::pair{Placement::v, 2});
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    World world(placement(ranks, v, kind), ranks);
    for (int tick = 0; tick < 4 * ranks * v; ++tick) world.tick();
    for (int tick = 0; tick < 20; ++tick) CHECK(world.tick() == ranks);
  }
}

TEST_CASE("an order of no group is refused", "[token_order]") {
  CHECK_THROWS_AS(TokenOrder(placement(2, 1, schedule::Placement::loop), 0, 0), Error);
}
