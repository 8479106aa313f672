#include "parallel/schedule/proof/validate.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/render/csv.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::schedule;
using pptrain::test::contains_text;

namespace {

std::string refusal(const Schedule& schedule, WaitModel model = WaitModel::at_consumer) {
  try {
    validate(schedule, model);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

Schedule compute() {
  return make_schedule({.name = "1f1b", .ranks = 3, .microbatches = 4});
}
Schedule lowered() {
  return lower(compute());
}

// The place of an action, by its text.
size_t place(const Schedule& s, int rank, const std::string& text) {
  const auto& list = s.actions[rank];
  const auto found = std::find(list.begin(), list.end(), parse_action(text));
  REQUIRE(found != list.end());
  return static_cast<size_t>(found - list.begin());
}

void erase(Schedule& s, int rank, const std::string& text) {
  s.actions[rank].erase(s.actions[rank].begin() + static_cast<std::ptrdiff_t>(place(s, rank, text)));
}

void swap(Schedule& s, int rank, const std::string& a, const std::string& b) {
  std::swap(s.actions[rank][place(s, rank, a)], s.actions[rank][place(s, rank, b)]);
}

// Moves the first such action to the place of `before`.
void move(Schedule& s, int rank, const std::string& what, const std::string& before) {
  erase(s, rank, what);
  auto& list = s.actions[rank];
  list.insert(list.begin() + static_cast<std::ptrdiff_t>(place(s, rank, before)), parse_action(what));
}

void replace(Schedule& s, int rank, const std::string& a, const std::string& b) {
  s.actions[rank][place(s, rank, a)] = parse_action(b);
}

}  // namespace

TEST_CASE("the message shows where it is") {
  Schedule s = compute();
  replace(s, 1, "1B2", "1B1");
  CHECK(refusal(s) ==
        "schedule 1f1b is unsound: rank 1, step 6 (1B1): 1B1 does what step 4 (1B1) has done already\n"
        "step    1     2     3     4     5     6     7\n"
        "rank 0  0F1   0F2   0B0   0F3   0B1   0B2   0B3\n"
        "rank 1  1F1   1B0   1F2   1B1   1F3  >1B1<  1B3\n"
        "rank 2  2B0   2F1   2B1   2F2   2B2   2F3   2B3\n");
}

TEST_CASE("incomplete schedules are refused") {
  for (const char* action : {"1F2", "1B2"}) {
    Schedule s = compute();
    erase(s, 1, action);
    CHECK_THAT(refusal(s), contains_text(action) && contains_text("missing") && contains_text("><"));
  }
  Schedule split = parse_csv("0F0,0I0,0W0");
  CHECK(refusal(split) == "accepted");
  erase(split, 0, "0W0");
  CHECK_THAT(refusal(split), contains_text("0W0 is missing"));
}

TEST_CASE("a schedule of no slices is refused") {
  Schedule s = compute();
  s.sequence_slices = 0;
  CHECK_THAT(refusal(s), contains_text("sequence slices"));
}

TEST_CASE("what is done twice is refused") {
  for (const char* again : {"0F1", "0B1", "0I1", "0W1"}) {
    Schedule s = compute();
    s.actions[0].push_back(parse_action(again));
    CHECK_THAT(refusal(s), contains_text("done already") && contains_text(std::string(">") + again + "<"));
  }
}

TEST_CASE("actions on the wrong rank, stage or microbatch are refused") {
  const std::pair<const char*, const char*> cases[] = {
      {"0F2", "stage 0 is on rank 0"}, {"7F2", "there is no stage 7"}, {"1F9", "there is no microbatch 9"}};
  for (const auto& [action, why] : cases) {
    Schedule s = compute();
    replace(s, 1, "1F2", action);
    CHECK_THAT(refusal(s), contains_text(why) && contains_text(std::string(">") + action + "<"));
  }
  Schedule s = compute();
  s.actions.pop_back();
  CHECK_THAT(refusal(s), contains_text("3 ranks has 2 lists"));
}

TEST_CASE("actions in the wrong order are refused") {
  Schedule forwards = compute();
  swap(forwards, 1, "1F0", "1F1");
  CHECK_THAT(refusal(forwards), contains_text("ascending") && contains_text(">1F1<"));
  Schedule backwards = compute();
  swap(backwards, 1, "1B0", "1B1");
  CHECK_THAT(refusal(backwards), contains_text("ascending") && contains_text(">1B1<"));
  Schedule early = compute();
  swap(early, 2, "2F0", "2B0");
  CHECK_THAT(refusal(early), contains_text("backward comes before 2F0") && contains_text(">2B0<"));
  CHECK_THAT(refusal(parse_csv("0F0,0W0,0I0")),
             contains_text("weight gradient comes before 0I0") && contains_text(">0W0<"));
  CHECK_THAT(refusal(parse_csv("0F0,0F1,0I0,0I1,0W1,0W0")),
             contains_text("ascending") && contains_text(">0W1<"));
  CHECK_THAT(refusal(parse_csv("0F0,0F1,0I0,0B1,0W0")), contains_text("ascending") && contains_text(">0B1<"));
  Schedule pair = parse_csv("0F0,(0F1;0B1)OVERLAP_F_B,0B0");
  CHECK_THAT(refusal(pair), contains_text(">(0F1;0B1)OVERLAP_F_B<"));
  pair.actions[0][1].backward_kind = ActionKind::backward_weight;
  CHECK_THAT(refusal(pair), contains_text("an F, then a B or I"));
}

TEST_CASE("a deadlock is refused with what each rank waits for") {
  // Each rank waits for the backward of the other's next stage.
  const Schedule s = parse_csv("0F0,2F0,0B0,2B0\n1F0,3F0,3B0,1B0\n");
  CHECK_THAT(refusal(s),
             contains_text("deadlock") && contains_text(">0B0<") &&
                 contains_text("rank 1 waits in step 3 (1B0) for the backward of microbatch 0 by stage 2"));
  // Both ranks take their second stage first.
  CHECK_THAT(refusal(parse_csv("2F0,0F0\n1F0,3F0\n")), contains_text("deadlock") && contains_text(">2F0<"));
}

TEST_CASE("missing, doubled, misplaced and needless messages are refused") {
  for (const auto& [rank, action] :
       {std::pair<int, const char*>{0, "0SEND_F1"}, {1, "1RECV_F1"}, {2, "2SEND_B1"}, {1, "1RECV_B1"}}) {
    Schedule s = lowered();
    erase(s, rank, action);
    CHECK_THAT(refusal(s), contains_text(std::string(action) + " is missing"));
    Schedule twice = lowered();
    twice.actions[rank].push_back(parse_action(action));
    CHECK_THAT(refusal(twice), contains_text("done already"));
  }
  Schedule early = lowered();
  swap(early, 0, "0SEND_F1", "0F1");
  CHECK_THAT(refusal(early), contains_text("sends what is computed only at") && contains_text(">0SEND_F1<"));
  Schedule late = lowered();
  erase(late, 1, "1RECV_B3");
  late.actions[1].push_back(parse_action("1RECV_B3"));
  CHECK_THAT(refusal(late), contains_text("has needed already") && contains_text(">1RECV_B3<"));
  for (const auto& [rank, action] :
       {std::pair<int, const char*>{0, "0RECV_F0"}, {0, "0SEND_B0"}, {2, "2SEND_F0"}, {2, "2RECV_B0"}}) {
    Schedule beyond = lowered();
    beyond.actions[rank].push_back(parse_action(action));
    CHECK_THAT(refusal(beyond), contains_text(rank == 0 ? "first stage" : "last stage"));
  }
  Schedule v = add_communication(parse_csv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n"));
  CHECK(refusal(v) == "accepted");
  v.actions[1].push_back(parse_action("1SEND_F0"));
  CHECK_THAT(refusal(v), contains_text("same rank"));
  Schedule forwards = lower(forward_only(compute()));
  forwards.actions[1].push_back(parse_action("1SEND_B0"));
  CHECK_THAT(refusal(forwards), contains_text("sends no gradients"));
  forwards.actions[1].back() = parse_action("1B0");
  CHECK_THAT(refusal(forwards), contains_text("has no backward"));
}

TEST_CASE("receives out of the order of their sends are refused") {
  Schedule s = add_communication(make_schedule({.name = "gpipe", .ranks = 2, .microbatches = 2}));
  s.actions[1] = parse_csv("0F0\n1RECV_F1,1RECV_F0,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1").actions[1];
  CHECK_THAT(refusal(s), contains_text("rank 0 sends it at step 1") && contains_text("(sent at step 3)") &&
                             contains_text("order of the sends") && contains_text(">1RECV_F0<"));
}

TEST_CASE("a receive that may not block in place is found by the stricter model") {
  const Schedule s = parse_csv(
      "0RECV_B0,0F0,0SEND_F0,0B0\n"
      "1RECV_F0,1F0,1B0,1SEND_B0\n");
  CHECK(refusal(s) == "accepted");
  CHECK_THAT(refusal(s, WaitModel::in_place), contains_text("deadlock") && contains_text(">0RECV_B0<"));
}

TEST_CASE("whole-stage actions are refused where they do not fit") {
  CHECK(refusal(parse_csv("0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0,0REDUCE_GRAD,0RESHARD")) == "accepted");
  CHECK_THAT(refusal(parse_csv("0UNSHARD,0F0,0RESHARD,0B0")),
             contains_text("not unsharded") && contains_text(">0B0<"));
  CHECK_THAT(refusal(parse_csv("0F0,0UNSHARD,0B0")),
             contains_text("not unsharded") && contains_text(">0F0<"));
  CHECK_THAT(refusal(parse_csv("0UNSHARD,0UNSHARD,0F0,0B0")), contains_text("unsharded already"));
  CHECK_THAT(refusal(parse_csv("0RESHARD,0F0,0B0")), contains_text("not unsharded"));
  CHECK_THAT(refusal(parse_csv("0F0,0F1,0B0,0REDUCE_GRAD,0B1")),
             contains_text("only 1 of 2 weight gradients"));
  CHECK_THAT(refusal(parse_csv("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD")), contains_text("reduced already"));
  CHECK_THAT(refusal(parse_csv("0F0,1F0,1B0,0B0,1REDUCE_GRAD")), contains_text("0REDUCE_GRAD is missing"));
}

TEST_CASE("sharded lists: each mutation is found") {
  const auto sharded = [](Reduce reduce) {
    return lower(compute(), {.gather = Gather::kept, .reduce = reduce});
  };
  REQUIRE(refusal(sharded(Reduce::step)) == "accepted");
  REQUIRE(refusal(sharded(Reduce::microbatch)) == "accepted");
  Schedule late = sharded(Reduce::step);
  swap(late, 1, "1UNSHARD", "1F0");
  CHECK_THAT(refusal(late), contains_text("not unsharded") && contains_text(">1F0<"));
  Schedule early = sharded(Reduce::step);
  move(early, 1, "1RESHARD", "1B3");
  CHECK_THAT(refusal(early), contains_text("not unsharded") && contains_text(">1B3<"));
  Schedule twice = sharded(Reduce::step);
  twice.actions[2].push_back(parse_action("2RESHARD"));
  CHECK_THAT(refusal(twice), contains_text("not unsharded") && contains_text(">2RESHARD<"));

  for (const Reduce reduce : {Reduce::step, Reduce::microbatch}) {
    Schedule again = sharded(reduce);
    again.actions[0].push_back(parse_action("0REDUCE_GRAD"));
    CHECK_THAT(refusal(again), contains_text("reduced already") || contains_text("more than once"));
    Schedule before = sharded(reduce);
    move(before, 1, "1REDUCE_GRAD", "1F0");
    CHECK_THAT(refusal(before), contains_text("no gradients yet") && contains_text(">1REDUCE_GRAD<"));
  }
  // Only one rank's list lacks a REDUCE_GRAD.
  Schedule missing = sharded(Reduce::step);
  erase(missing, 2, "2REDUCE_GRAD");
  CHECK_THAT(refusal(missing), contains_text("2REDUCE_GRAD is missing"));
  Schedule skipped = sharded(Reduce::microbatch);
  erase(skipped, 1, "1REDUCE_GRAD");
  CHECK_THAT(refusal(skipped), contains_text("2 weight gradients") && contains_text(">1REDUCE_GRAD<"));
  Schedule unreduced = sharded(Reduce::microbatch);
  auto& list = unreduced.actions[1];
  REQUIRE(list.back() == parse_action("1REDUCE_GRAD"));
  list.pop_back();
  CHECK_THAT(refusal(unreduced), contains_text("1REDUCE_GRAD is missing"));
  // A gradient after the stage's only reduction.
  CHECK_THAT(refusal(parse_csv("0F0,0F1,0B0,0I1,0REDUCE_GRAD,0W1")), contains_text("only 1 of 2"));
  // W needs no weights, I does.
  CHECK(refusal(parse_csv("0UNSHARD,0F0,0I0,0RESHARD,0W0,0REDUCE_GRAD")) == "accepted");
  CHECK_THAT(refusal(parse_csv("0UNSHARD,0F0,0RESHARD,0I0,0W0")), contains_text(">0I0<"));
  CHECK_THAT(refusal(parse_csv("0F0,0REDUCE_GRAD")), contains_text("no gradients yet"));
}
