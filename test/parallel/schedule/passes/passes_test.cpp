#include "parallel/schedule/passes/passes.h"

#include "core/base/error.h"
#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/proof/validate.h"
#include "parallel/schedule/render/csv.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::schedule;

namespace {

Schedule one_f_one_b(int p, int m) {
  return make_schedule({.name = "1f1b", .ranks = p, .microbatches = m});
}

}  // namespace

TEST_CASE("communication goes around what is computed") {
  const Schedule s = add_communication(one_f_one_b(2, 2));
  CHECK(write_csv(s) ==
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
        "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  CHECK_THROWS_AS(add_communication(s), Error);
}

TEST_CASE("pairs are split, and what the forward of one makes leaves before the backward runs") {
  const Schedule s = parse_csv(
      "0F0,0F1,3F0,(3F1;3I0)OVERLAP_F_B,3W0,(0F2;3B1)OVERLAP_F_B,0B0,3F2,3B2,0B1,0B2\n"
      "1F0,2F0,1F1,2F1,2B0,(1F2;1B0)OVERLAP_F_B,2F2,2B1,1B1,2B2,1B2\n");
  const Schedule split = split_pairs(s);
  CHECK(write_csv(split) ==
        "0F0,0F1,3F0,3F1,3I0,3W0,0F2,3B1,0B0,3F2,3B2,0B1,0B2\n"
        "1F0,2F0,1F1,2F1,2B0,1F2,1B0,2F2,2B1,1B1,2B2,1B2\n");
  CHECK_NOTHROW(validate(split));
  const std::string text = write_csv(lower(s));
  CHECK(text.find("OVERLAP") == std::string::npos);
  CHECK(text.find("0F2,0SEND_F2,") < text.find("3B1,3SEND_B1"));
  // A file that has its sends after the pair keeps them there.
  const Schedule with = add_communication(s);
  CHECK(compute_only(lower(with)).actions == split.actions);
  CHECK(write_csv(lower(with)).find("0F2,3B1,0SEND_F2,3SEND_B1") != std::string::npos);
}

TEST_CASE("pairs of two stages stay where passes wait for exchanges") {
  const Schedule s = parse_csv("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\n");
  CHECK(lower(s).actions == lower(split_pairs(s)).actions);
  CHECK(write_csv(lower(s, {.reduce = Reduce::none, .keep_pairs = true})) == write_csv(s));
  const Schedule one_stage = parse_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n");
  CHECK(write_csv(lower(one_stage, {.reduce = Reduce::none, .keep_pairs = true})) == "0F0,0F1,0B0,0B1\n");
  for (const int p : {1, 2, 4}) {
    const Schedule pairs = make_schedule({.name = "dualpipe_v", .ranks = p, .microbatches = 2 * p});
    const Schedule lowered = lower(pairs, {.gather = Gather::streamed, .keep_pairs = true});
    CHECK(compute_only(lowered).actions == pairs.actions);
    CHECK(simulate(lowered).step_time == simulate(pairs).step_time);
  }
}

TEST_CASE("split, the pairs of dualpipe_v idle half as long, in the same memory") {
  for (const int p : {2, 3, 4, 8}) {
    for (const int m : {2 * p, 2 * p + 1, 4 * p}) {
      const Schedule pairs = make_schedule({.name = "dualpipe_v", .ranks = p, .microbatches = m});
      const Schedule lowered = lower(pairs);
      CAPTURE(p, m);
      // F = I = W = 1 and no transfer times.
      CHECK(simulate(pairs).step_time == 6 * m + 2 * (p - 1));
      CHECK(simulate(lowered).step_time == 6 * m + p - 1);
      const auto before = in_flight(pairs);
      const auto after = in_flight(lowered);
      for (int rank = 0; rank < p; ++rank) {
        CHECK(after[rank].activations == before[rank].activations);
        CHECK(after[rank].held == before[rank].held);
        CHECK(after[rank].receive_buffers <= 4);
      }
    }
  }
}

TEST_CASE("stages of one rank hand over without communication") {
  const Schedule s = add_communication(parse_csv("0F0,3F0,3I0,3W0,0B0\n1F0,2F0,2I0,1I0,2W0,1W0\n"));
  CHECK(write_csv(s) ==
        "0F0,0SEND_F0,3RECV_F0,3F0,3I0,3SEND_B0,3W0,0RECV_B0,0B0\n"
        "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2I0,1I0,1SEND_B0,2W0,1W0\n");
}

TEST_CASE("receives keep the order of the sends where the receiver uses them in another") {
  // Rank 0 sends 0F1 before 2B0 (to stage 1 on rank 1), but rank 1 uses the gradient first.
  const Schedule s = parse_csv(
      "0F0,2F0,0F1,2B0,2F1,2B1,0B0,0B1\n"
      "1F0,3F0,3B0,1B0,1F1,3F1,3B1,1B1\n");
  validate(s);
  const Schedule with = add_communication(s);
  CHECK_NOTHROW(validate(with, WaitModel::in_place));
  CHECK(write_csv(with).find("1RECV_F1,1RECV_B0,1B0,1SEND_B0,1F1") != std::string::npos);
}

TEST_CASE("receives are posted one action ahead, and no more than two of a channel") {
  const Schedule s = hoist_receives(add_communication(one_f_one_b(2, 3)));
  CHECK(write_csv(s) ==
        "0F0,0SEND_F0,0RECV_B0,0F1,0SEND_F1,0B0,0RECV_B1,0F2,0SEND_F2,0RECV_B2,0B1,0B2\n"
        "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1RECV_F2,1B1,1SEND_B1,1F2,1B2,1SEND_B2\n");
  for (const std::string name : {"gpipe", "1f1b"}) {
    const Schedule made = make_schedule({.name = name, .ranks = 4, .microbatches = 9});
    const Schedule hoisted = hoist_receives(add_communication(made));
    CHECK_NOTHROW(validate(hoisted));
    for (const InFlight& peak : in_flight(hoisted)) CHECK(peak.receive_buffers <= 4);
  }
}

TEST_CASE("posting early hides the transfer behind the action before") {
  const Costs costs{.stages = {}, .latency = {0.5}};
  const Schedule in_place = add_communication(one_f_one_b(4, 16));
  CHECK(simulate(hoist_receives(in_place), costs).step_time < simulate(in_place, costs).step_time);
}

TEST_CASE("gradients are reduced once per stage, after its last weight gradient and its send") {
  const Schedule s = add_reduce_grad(add_communication(parse_csv("0F0,2F0,2B0,0I0,0W0\n1F0,3F0,3B0,1B0\n")));
  CHECK_NOTHROW(validate(s));
  CHECK(
      write_csv(s) ==
      "0F0,0SEND_F0,2RECV_F0,2F0,2SEND_F0,2RECV_B0,2B0,2SEND_B0,2REDUCE_GRAD,0RECV_B0,0I0,0W0,0REDUCE_GRAD\n"
      "1RECV_F0,1F0,1SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,3REDUCE_GRAD,1RECV_B0,1B0,1SEND_B0,1REDUCE_GRAD\n");
}

TEST_CASE("any placement has a forward-only list that keeps the ranks busy") {
  for (const Placement placement : {Placement::loop, Placement::v}) {
    for (int p = 1; p <= 6; ++p) {
      for (int v = 1; v <= 4; ++v) {
        for (int m = 1; m <= 13; ++m) {
          Schedule s;
          s.ranks = p;
          s.stages_per_rank = v;
          s.placement = placement;
          s.actions.resize(p);
          const Schedule forwards = lower(forward_only(s, m));
          CHECK(forwards.microbatches == m);
          // On the V the last microbatch must come back up from the rank at the bottom.
          const bool is_v = placement == Placement::v;
          if (is_v ? v <= 2 : m % p == 0) {
            CHECK(simulate(forwards).step_time == m * v + (is_v && v == 2 ? 2 : 1) * (p - 1));
          }
        }
      }
    }
  }
  const Schedule one = forward_only(one_f_one_b(3, 4));
  CHECK(write_csv(one) == "0F0,0F1,0F2,0F3\n1F0,1F1,1F2,1F3\n2F0,2F1,2F2,2F3\n");
}

TEST_CASE("lowering proves each pass and leaves a schedule that brings communication as it is") {
  const Schedule s = lower(make_schedule({.name = "1f1b", .ranks = 4, .microbatches = 8}));
  CHECK(s.has_communication());
  CHECK(lower(s).actions == s.actions);
  const Schedule without =
      lower(make_schedule({.name = "1f1b", .ranks = 4, .microbatches = 8}), {.reduce = Reduce::none});
  CHECK(write_csv(without).find("REDUCE_GRAD") == std::string::npos);
  Schedule broken = one_f_one_b(4, 8);
  broken.actions[2].pop_back();
  CHECK_THROWS_AS(lower(broken), Error);
}

TEST_CASE("lowering ends with the pass that is named, with the list that this pass makes") {
  const Schedule given = make_schedule({.name = "dualpipe_v", .ranks = 2, .microbatches = 4});
  const ShardOptions shard{.gather = Gather::kept, .reduce = Reduce::step};
  Schedule expected = split_pairs(given);
  CHECK(lower(given, shard, "split_pairs").actions == expected.actions);
  expected = add_communication(expected);
  CHECK(lower(given, shard, "add_communication").actions == expected.actions);
  expected = hoist_receives(expected);
  CHECK(lower(given, shard, "hoist_receives").actions == expected.actions);
  expected = add_reduce_grad(expected);
  CHECK(lower(given, shard, "add_reduce_grad").actions == expected.actions);
  expected = add_unshard(expected, Gather::kept);
  CHECK(lower(given, shard, "add_unshard").actions == expected.actions);
  CHECK(lower(given, shard).actions == expected.actions);
  CHECK(pass_names().front() == "split_pairs");
  CHECK(pass_names().back() == "match_messages");
}
