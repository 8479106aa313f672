#include "parallel/schedule/proof/speculation.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "test/support/catch.h"
#include "test/support/passes_of.h"

using namespace pptrain;
using namespace pptrain::schedule;

namespace {

// Calls check(lowered schedule) for every training schedule that exists with p in 1..8, m in 1..32.
template <typename Check>
void for_every_schedule(Check&& check) {
  for (const std::string& name : schedule_names()) {
    if (name == "inference") continue;
    for (int p = 1; p <= 8; ++p) {
      for (int m = 1; m <= 32; ++m) {
        Schedule compute;
        try {
          compute = make_schedule({.name = name, .ranks = p, .microbatches = m});
        } catch (const UsageError&) {
          continue;
        }
        INFO(name << " p " << p << " m " << m);
        check(lower(compute));
      }
    }
  }
}

using Channel = std::pair<int, int>;

// A rank's sends or posts by channel, in order: (SEND_F of a stage, SEND_B of a stage).
std::map<Channel, std::vector<std::string>> messages(const Schedule& s, int rank,
                                                     const std::vector<Action>& list, bool sends) {
  std::map<Channel, std::vector<std::string>> result;
  for (const Action& a : list) {
    if (!is_communication(a.kind) || is_send(a.kind) != sends) continue;
    const bool forward = a.kind == ActionKind::send_f || a.kind == ActionKind::recv_f;
    const int step = (forward == sends) ? 1 : -1;
    const int peer = s.rank_of(a.stage + step);
    const int sender_stage = sends ? a.stage : a.stage + step;
    const std::string what =
        (forward ? "F" : "B") + std::to_string(sender_stage) + "." + std::to_string(a.microbatch);
    result[sends ? Channel{rank, peer} : Channel{peer, rank}].push_back(what);
  }
  return result;
}

std::vector<Action> prefix_and_drain(const Schedule& s, const Speculation& speculation, int rank) {
  const auto& list = s.actions[rank];
  std::vector<Action> result(list.begin(), list.begin() + static_cast<long>(speculation.prefix[rank]));
  result.insert(result.end(), speculation.drain[rank].begin(), speculation.drain[rank].end());
  return result;
}

bool takes_gradient(const Schedule& s, const Action& a) {
  return a.kind == ActionKind::overlapped_pair || is_gradient(a.kind) ||
         a.kind == ActionKind::backward_weight ||
         (a.kind == ActionKind::forward && a.stage + 1 == s.stages());
}

}  // namespace

TEST_CASE("prefixes wait for prefixes alone, and end at the first gradient in every schedule") {
  for_every_schedule([](const Schedule& s) {
    const Speculation speculation = speculate(s);
    std::set<std::pair<int, int>> forwards;  // (stage, microbatch) that prefixes run
    for (int rank = 0; rank < s.ranks; ++rank) {
      for (size_t i = 0; i < speculation.prefix[rank]; ++i) {
        const Action& a = s.actions[rank][i];
        REQUIRE_FALSE(takes_gradient(s, a));
        if (a.kind == ActionKind::forward) forwards.insert({a.stage, a.microbatch});
      }
    }
    for (const auto& [stage, mb] : forwards) REQUIRE((stage == 0 || forwards.contains({stage - 1, mb})));
    for (int rank = 0; rank < s.ranks; ++rank) {
      REQUIRE(speculation.prefix[rank] < s.actions[rank].size());
      REQUIRE(takes_gradient(s, s.actions[rank][speculation.prefix[rank]]));
    }
  });
}

TEST_CASE("prefix and drain leave every channel even, in its order") {
  for_every_schedule([](const Schedule& s) {
    const Speculation speculation = speculate(s);
    std::map<Channel, std::vector<std::string>> sent;
    std::map<Channel, std::vector<std::string>> received;
    for (int rank = 0; rank < s.ranks; ++rank) {
      const std::vector<Action> list = prefix_and_drain(s, speculation, rank);
      sent.merge(messages(s, rank, list, true));
      received.merge(messages(s, rank, list, false));
    }
    REQUIRE(sent == received);
  });
}

TEST_CASE("without the barrier zb_h2 and zbv have no bubble if F = I = W") {
  for (int p = 1; p <= 8; ++p) {
    for (const int m : {2 * p, 4 * p + 1}) {
      CAPTURE(p, m);
      for (const auto& [name, work] : {std::pair("zb_h2", 3 * m), std::pair("zbv", 6 * m)}) {
        const Schedule s = lower(make_schedule({.name = name, .ranks = p, .microbatches = m}));
        CHECK(simulate(s).step_time == work + p - 1);
        CHECK(post_validated_step_time(s, {}) == work);
      }
    }
  }
}

TEST_CASE("post-validation never costs time") {
  const Costs costs{.stages = {passes_of(1, 1.3, 0.8)}, .latency = {0.1}};
  for_every_schedule([&](const Schedule& s) {
    if (s.microbatches % 8 != 0) return;
    CHECK(post_validated_step_time(s, costs) <= simulate(s, costs).step_time * (1 + 1e-12));
  });
}
