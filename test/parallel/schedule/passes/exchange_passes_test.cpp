// The passes that place UNSHARD, RESHARD and REDUCE_GRAD, and lower() on a list that has them.
#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/proof/speculation.h"
#include "parallel/schedule/proof/validate.h"
#include "parallel/schedule/render/csv.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::schedule;

namespace {

size_t count(const Schedule& s, ActionKind kind) {
  size_t found = 0;
  for (const auto& list : s.actions)
    found += static_cast<size_t>(std::ranges::count(list, kind, &Action::kind));
  return found;
}

// Calls visit for each way to shard parameters, with every schedule of p up to 4 and m up to 8, and with its
// forwards alone.
template <typename Visit>
void for_every_sharding(Visit&& visit) {
  for (const std::string& name : schedule_names()) {
    for (int p = 1; p <= 4; ++p) {
      for (int m = 1; m <= 8; ++m) {
        Schedule made;
        try {
          made = make_schedule({.name = name, .ranks = p, .microbatches = m});
        } catch (const UsageError&) {
          continue;
        }
        for (const Gather gather : {Gather::kept, Gather::streamed}) {
          for (const Reduce reduce : {Reduce::none, Reduce::step, Reduce::microbatch}) {
            CAPTURE(name, p, m, static_cast<int>(gather), static_cast<int>(reduce));
            visit(made, ShardOptions{.gather = gather, .reduce = reduce});
            visit(forward_only(made), ShardOptions{.gather = gather, .reduce = reduce});
          }
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("kept, a rank's stages are gathered before anything is computed, in the order of their use") {
  CHECK(write_csv(
            add_unshard(add_communication(parse_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")), Gather::kept)) ==
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0RESHARD\n"
        "1RECV_F0,1UNSHARD,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1RESHARD\n");
  // W needs no weights: they are freed before it.
  CHECK(write_csv(add_unshard(parse_csv("0F0,3F0,3I0,3W0,0B0\n1F0,2F0,2I0,1I0,2W0,1W0\n"), Gather::kept)) ==
        "0UNSHARD,3UNSHARD,0F0,3F0,3I0,3RESHARD,3W0,0B0,0RESHARD\n"
        "1UNSHARD,2UNSHARD,1F0,2F0,2I0,2RESHARD,1I0,1RESHARD,2W0,1W0\n");
}

TEST_CASE("streamed, a stage is gathered one action before it is needed, and freed after it") {
  const auto streamed = [](const char* csv) {
    return write_csv(add_unshard(parse_csv(csv), Gather::streamed));
  };
  CHECK(streamed("0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n1F0,3F0,1F1,3F1,3B0,3B1,1B0,1B1\n")
            .starts_with(
                "0UNSHARD,0F0,2UNSHARD,0F1,0RESHARD,2F0,2F1,2B0,0UNSHARD,2B1,2RESHARD,0B0,0B1,0RESHARD\n"
                "1UNSHARD,3UNSHARD,1F0,3F0,1F1,"));
  CHECK(streamed("0F0,1F0,1B0,0B0\n") ==
        "0UNSHARD,1UNSHARD,0F0,0RESHARD,1F0,0UNSHARD,1B0,1RESHARD,0B0,0RESHARD\n");
  // Weights that are needed right after a single W are not freed for it; for two they are.
  CHECK(streamed("0F0,0I0,0W0,0F1,0I1,0W1\n") == "0UNSHARD,0F0,0I0,0W0,0F1,0I1,0RESHARD,0W1\n");
  CHECK(streamed("0F0,0F1,0I0,0I1,0W0,0W1,0F2,0I2,0W2\n") ==
        "0UNSHARD,0F0,0F1,0I0,0I1,0RESHARD,0W0,0UNSHARD,0W1,0F2,0I2,0RESHARD,0W2\n");
  // The sends of an action go before RESHARD.
  CHECK(write_csv(add_unshard(add_communication(parse_csv("0F0,0B0\n1F0,1B0\n")), Gather::streamed))
            .find("1B0,1SEND_B0,1RESHARD\n") != std::string::npos);
}

TEST_CASE("gradients are reduced after each microbatch") {
  CHECK(write_csv(add_reduce_grad(add_communication(parse_csv("0F0,0F1,0I0,0W0,0B1\n1F0,1B0,1F1,1B1\n")),
                                  Reduce::microbatch)) ==
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0I0,0W0,0REDUCE_GRAD,0RECV_B1,0B1,0REDUCE_GRAD\n"
        "1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RECV_F1,1F1,1B1,1SEND_B1,1REDUCE_GRAD\n");
}

TEST_CASE(
    "every schedule can be sharded: proven, in its order, with two stages whole at a time where streamed") {
  for_every_sharding([](const Schedule& made, const ShardOptions& shard) {
    const Schedule s = lower(made, shard);
    REQUIRE(compute_only(s).actions == compute_only(lower(made)).actions);
    const size_t stages = static_cast<size_t>(s.stages());
    const size_t microbatches = static_cast<size_t>(s.microbatches);
    const size_t reductions = s.forward_only || shard.reduce == Reduce::none ? 0
                              : shard.reduce == Reduce::step                 ? stages
                                                                             : stages * microbatches;
    REQUIRE(count(s, ActionKind::reduce_grad) == reductions);
    REQUIRE(count(s, ActionKind::reshard) == count(s, ActionKind::unshard));
    if (shard.gather == Gather::kept) REQUIRE(count(s, ActionKind::unshard) == stages);
    for (const auto& list : s.actions) {
      std::set<int> whole;
      for (const Action& action : list) {
        if (action.kind == ActionKind::unshard) whole.insert(action.stage);
        if (action.kind == ActionKind::reshard) whole.erase(action.stage);
        if (shard.gather == Gather::streamed) REQUIRE(whole.size() <= 2);
      }
      REQUIRE(whole.empty());
    }
  });
}

TEST_CASE("gathers do not shorten what may run ahead of the step before") {
  for (const std::string name : {"1f1b", "zb_h1", "zbv", "interleaved_1f1b"}) {
    const Schedule made = make_schedule({.name = name, .ranks = 4, .microbatches = 8});
    const Schedule whole = lower(made);
    const Speculation expected = speculate(whole);
    for (const Gather gather : {Gather::kept, Gather::streamed}) {
      const Schedule s = lower(made, {.gather = gather});
      const Speculation speculation = speculate(s);
      for (int rank = 0; rank < s.ranks; ++rank) {
        std::vector<Action> prefix(s.actions[rank].begin(),
                                   s.actions[rank].begin() + static_cast<long>(speculation.prefix[rank]));
        std::erase_if(prefix, [](const Action& a) {
          return a.kind == ActionKind::unshard || a.kind == ActionKind::reshard;
        });
        CAPTURE(name, static_cast<int>(gather), rank);
        CHECK(prefix ==
              std::vector<Action>(whole.actions[rank].begin(),
                                  whole.actions[rank].begin() + static_cast<long>(expected.prefix[rank])));
        CHECK(speculation.drain[rank] == expected.drain[rank]);
      }
    }
  }
}

TEST_CASE("a list keeps the exchanges that it brings if the job can use them") {
  const Schedule brings = parse_csv("0UNSHARD,0F0,0F1,0RESHARD,0UNSHARD,0B0,0B1,0RESHARD,0REDUCE_GRAD\n");
  CHECK(lower(brings, {.gather = Gather::streamed}).actions == brings.actions);
  CHECK(lower(brings).actions == brings.actions);  // whole weights: they cost nothing
  CHECK(write_csv(lower(brings, {.gather = Gather::kept, .reduce = Reduce::microbatch})) ==
        "0UNSHARD,0F0,0F1,0RESHARD,0UNSHARD,0B0,0REDUCE_GRAD,0B1,0REDUCE_GRAD,0RESHARD\n");
  // Stage 1 is never unsharded: lower() removes the list's own UNSHARD and RESHARD.
  const Schedule half = parse_csv("0UNSHARD,0F0,1F0,1B0,1REDUCE_GRAD,0B0,0REDUCE_GRAD\n");
  CHECK(lower(half).actions == half.actions);
  CHECK(write_csv(lower(half, {.gather = Gather::kept})) ==
        "0UNSHARD,1UNSHARD,0F0,1F0,1B0,1RESHARD,1REDUCE_GRAD,0B0,0RESHARD,0REDUCE_GRAD\n");
}
