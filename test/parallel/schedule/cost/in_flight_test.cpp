#include "parallel/schedule/cost/in_flight.h"

#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/render/csv.h"
#include "test/support/catch.h"

using namespace pptrain::schedule;

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
