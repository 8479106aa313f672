#include "parallel/schedule/cost/memory.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/error.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/render/csv.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::schedule;

namespace {

std::vector<MemorySplit> uniform(const Schedule& s, const StageBytes& stage) {
  return peak_bytes(s, std::vector<StageBytes>(s.stages(), stage));
}

// With one byte for each thing that in_flight counts, the peaks are its counts.
void check_unit_bytes(const Schedule& s) {
  const auto counts = in_flight(s);
  const auto activations = uniform(s, {.activation = 1});
  const auto operands = uniform(s, {.weight_operands = 1});
  const auto both = uniform(s, {.activation = 1, .weight_operands = 1});
  const auto messages = uniform(s, {.message = 1});
  for (int r = 0; r < s.ranks; ++r) {
    CAPTURE(s.name, s.ranks, s.stages_per_rank, s.microbatches, r);
    CHECK(activations[r].total() == counts[r].activations);
    CHECK(operands[r].total() == counts[r].weight_operands);
    CHECK(both[r].total() == counts[r].held);
    CHECK(messages[r].buffers >= counts[r].receive_buffers);
  }
}

}  // namespace

TEST_CASE("with unit bytes the peaks are the counts, in every schedule") {
  int checked = 0;
  for (const std::string& name : schedule_names()) {
    for (int p = 1; p <= 4; ++p) {
      for (int m = 1; m <= 8; ++m) {
        Schedule s;
        try {
          s = make_schedule({.name = name, .ranks = p, .microbatches = m});
        } catch (const UsageError&) {
          continue;
        }
        if (s.forward_only) continue;
        check_unit_bytes(s);
        check_unit_bytes(lower(s));
        ++checked;
      }
    }
  }
  CHECK(checked > 200);
}

TEST_CASE("stages of unequal size: the peak is where the bytes are, not the count") {
  // One rank, stages 0 and 1: two microbatches of the small stage, one of the large.
  const Schedule s = parse_csv("0F0,0F1,1F0,1B0,0B0,1F1,1B1,0B1\n");
  REQUIRE(s.stages() == 2);
  const std::vector<StageBytes> stages = {
      {.activation = 10, .workspace = {.forward = 3, .backward = 4}},
      {.activation = 100, .workspace = {.forward = 30, .backward = 20}, .message = 7}};
  const MemorySplit rank = peak_bytes(s, stages)[0];
  CHECK(rank.activations == 120);
  CHECK(rank.workspace == 30);
  CHECK(rank.weight_operands == 0);
  // Both outputs of stage 0's forwards waited for stage 1; it has taken the first.
  CHECK(rank.buffers == 7);
  CHECK(peak_bytes(s, std::vector<StageBytes>{{}, {.message = 7}})[0].buffers == 14);
}

TEST_CASE("operands that I leaves wait for W, and each action has its own workspace") {
  const Schedule s = parse_csv("0F0,0I0,0F1,0W0,0B1\n");
  const MemorySplit rank =
      uniform(s, {.activation = 10,
                  .weight_operands = 8,
                  .workspace = {.forward = 1, .backward = 2, .backward_input = 5, .backward_weight = 3}})[0];
  CHECK(rank.total() == 21);  // W0 runs while F1's activations are there
  CHECK(rank.activations == 10);
  CHECK(rank.weight_operands == 8);
  CHECK(rank.workspace == 3);
}

TEST_CASE("messages: a receive from its post, an output to one action after its send") {
  const Schedule s = parse_csv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1\n"
      "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
  const auto ranks = uniform(s, {.message = 5});
  CHECK(ranks[0].buffers == 10);  // F1's output next to F0's, which is being sent; then the two receives
  CHECK(ranks[1].buffers == 10);
  // Without communication nothing is held for it.
  CHECK(uniform(parse_csv("0F0,0B0\n1F0,1B0\n"), {.message = 5})[0].buffers == 0);
}

TEST_CASE("a forward-only schedule keeps nothing from one forward to the next") {
  const auto ranks =
      uniform(parse_csv("0F0,0F1\n1F0,1F1\n"), {.activation = 10, .workspace = {.forward = 2}, .message = 0});
  CHECK(ranks[0].activations == 10);
  CHECK(ranks[0].total() == 12);
}

TEST_CASE("gathered weights are there from UNSHARD to RESHARD") {
  const auto gathered = [](const char* csv) {
    return uniform(parse_csv(csv), {.activation = 10, .gathered = 7})[0];
  };
  CHECK(gathered("0F0,0F1,0B0,0B1\n").gathered == 0);
  CHECK(gathered("0UNSHARD,0F0,0F1,0B0,0B1\n").total() == 27);
  // Both stages' weights are there while the second's forward runs, but only one microbatch's activations.
  const MemorySplit two = gathered("0UNSHARD,0F0,1UNSHARD,0RESHARD,1F0,0UNSHARD,1B0,1RESHARD,0B0,0RESHARD\n");
  CHECK(two.activations == 20);
  CHECK(two.total() == 34);
  CHECK(two.gathered == 14);
  CHECK(gathered("0UNSHARD,0F0,0I0,0RESHARD,0W0\n").total() == 17);
}

TEST_CASE("gradients on their way are held to the end of the next compute action") {
  const MemorySplit rank =
      uniform(parse_csv("0F0,0F1,0B0,0REDUCE_GRAD,0B1,0REDUCE_GRAD\n"), {.activation = 1, .reducing = 4})[0];
  CHECK(rank.total() == 9);  // B1: its activations, its gradients and B0's gradients
  CHECK(rank.reducing == 8);
  CHECK(
      uniform(parse_csv("0F0,0F1,0B0,0REDUCE_GRAD,0B1,0REDUCE_GRAD\n"), {.activation = 100, .reducing = 4})[0]
          .total() == 204);
}

TEST_CASE("bytes of another number of stages are refused") {
  CHECK_THROWS_AS(peak_bytes(parse_csv("0F0,0B0\n1F0,1B0\n"), std::vector<StageBytes>(3)), Error);
}

TEST_CASE("microbatches of other sizes count as much as they have") {
  const Schedule s = parse_csv("0F0,0F1,0B0,0F2,0B1,0B2\n");
  const auto peak = [&](int64_t first, int64_t second, int64_t third) {
    return peak_bytes(s, std::vector<StageBytes>{{.activation = first, .workspace = {.backward = first}},
                                                 {.activation = second, .workspace = {.backward = 5}},
                                                 {.activation = third, .workspace = {.forward = 1}}})[0]
        .total();
  };
  CHECK(peak(10, 20, 30) == 55);    // B1, with F2's saved activations
  CHECK(peak(100, 20, 30) == 220);  // B0
  CHECK(peak(1, 1, 1) == 7);
}

TEST_CASE("I frees all but what W needs") {
  const InFlight split = in_flight(parse_csv("0F0,0F1,0I0,0I1,0W0,0W1"))[0];
  CHECK(split.activations == 2);
  CHECK(split.weight_operands == 2);
  CHECK(split.held == 2);
  const InFlight turn = in_flight(parse_csv("0F0,0I0,0F1,0I1,0W0,0W1"))[0];
  CHECK(turn.activations == 1);
  CHECK(turn.weight_operands == 2);
  CHECK(turn.held == 2);
}

TEST_CASE("an overlapped pair holds both of its microbatches at once") {
  const Schedule s = parse_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1");
  CHECK(in_flight(s)[0].activations == 2);
}

TEST_CASE("both halves of an overlapped pair have their workspace at once") {
  const Schedule s = parse_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1");
  CHECK(uniform(s, {.workspace = {.forward = 100, .backward = 10}})[0].workspace == 110);
  CHECK(uniform(s, {.workspace = {.forward = 10, .backward = 100}})[0].workspace == 110);
}

TEST_CASE("receive buffers live from the receive to the end of its consumer") {
  const auto peaks =
      in_flight(parse_csv("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1\n"
                          "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n"));
  CHECK(peaks[0].receive_buffers == 2);
  CHECK(peaks[1].receive_buffers == 1);
  CHECK(in_flight(parse_csv("0F0,0B0\n1F0,1B0\n"))[1].receive_buffers == 0);
}

TEST_CASE("a forward-only schedule keeps nothing") {
  CHECK(in_flight(parse_csv("0F0,0F1\n1F0,1F1\n"))[0].activations == 0);
}

TEST_CASE("a message is as large as the later stage's input, both ways") {
  const auto peaks = peak_bytes(parse_csv("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
                                std::vector<StageBytes>{{}, {.message = 5}});
  CHECK(peaks[0].buffers == 10);  // what is sent, and the gradient that comes
  CHECK(peaks[1].buffers == 5);
}

TEST_CASE("a part of a head is held from S to T, and all terms from T to the last stage's backward") {
  const std::vector<StageBytes> bytes{{.head = 10}, {.head = 10, .head_gradient = 100}};
  const auto peaks = peak_bytes(parse_csv("0F0,0F1,0S0,0S1,0T0,0T1,0B0,0B1\n"
                                          "1F0,1F1,1S0,1S1,1T0,1T1,1B0,1B1\n"),
                                bytes);
  CHECK(peaks[0].total() == 20);
  CHECK(peaks[1].total() == 210);  // T1 runs
  CHECK(peaks[1].buffers == 200);
  CHECK(peak_bytes(parse_csv("0F0,0F1,0S0,0T0,0S1,0T1,0B0,0B1\n1F0,1F1,1S0,1T0,1B0,1S1,1T1,1B1\n"), bytes, 1)
            .total() == 110);  // B takes the terms
  const auto evaluation = peak_bytes(parse_csv("0F0,0S0,0T0\n1F0,1S0,1T0\n"), bytes);
  CHECK(evaluation[1].total() == 10);
}
