#include "parallel/schedule/action.h"

#include "core/base/error.h"
#include "parallel/schedule/per_pass.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::schedule;

TEST_CASE("actions are written as PyTorch writes them, and read back") {
  const std::pair<Action, const char*> cases[] = {
      {forward(2, 0), "2F0"},
      {backward(12, 34), "12B34"},
      {backward_input(0, 7), "0I7"},
      {backward_weight(1, 1), "1W1"},
      {{ActionKind::send_f, 0, 1}, "0SEND_F1"},
      {{ActionKind::recv_f, 1, 1}, "1RECV_F1"},
      {{ActionKind::send_b, 1, 1}, "1SEND_B1"},
      {{ActionKind::recv_b, 0, 1}, "0RECV_B1"},
      {{ActionKind::unshard, 3, -1}, "3UNSHARD"},
      {{ActionKind::reshard, 3, -1}, "3RESHARD"},
      {{ActionKind::reduce_grad, 0, -1}, "0REDUCE_GRAD"},
      {overlapped(forward(0, 3), backward(3, 0)), "(0F3;3B0)OVERLAP_F_B"},
      {receive_of_head(1, head_forward(0, 3)), "1RECV_HEAD(0S3)"},
      {receive_of_head(0, forward(7, 2)), "0RECV_HEAD(7F2)"},
  };
  for (const auto& [action, text] : cases) {
    CHECK(to_string(action) == text);
    CHECK(parse_action(text) == action);
    CHECK(parse_action(std::string(" ") + text + "\r") == action);
  }
  CHECK(maker_of(receive_of_head(1, head_backward(2, 3))) == head_backward(2, 3));
  CHECK(parse_action("5FULL_BACKWARD3") == backward(5, 3));
  CHECK(parse_action("( 0F3 ; 3I0 )OVERLAP_F_B") == overlapped(forward(0, 3), backward_input(3, 0)));
}

TEST_CASE("a pair is a forward, then a backward, and can be taken apart") {
  const Action pair = overlapped(forward(0, 3), backward_input(3, 1));
  CHECK(forward_of(pair) == forward(0, 3));
  CHECK(backward_of(pair) == backward_input(3, 1));
  CHECK_THROWS_AS(overlapped(backward(3, 0), forward(0, 3)), Error);
  CHECK_THROWS_AS(overlapped(forward(0, 3), backward_weight(3, 0)), Error);
}

TEST_CASE("what is not an action is refused") {
  for (const char* text : {"",
                           "F0",
                           "2F",
                           "2G0",
                           "2f0",
                           "2F0x",
                           "2F-1",
                           "-2F0",
                           "2UNSHARD1",
                           "99999999999F0",
                           "0F99999999999",
                           "(0F3;3B0)",
                           "(0F3)OVERLAP_F_B",
                           "(0F3;3B0;0W1)OVERLAP_F_B",
                           "(3B0;0F3)OVERLAP_F_B",
                           "(0F3;3W0)OVERLAP_F_B",
                           "(0F3;3B0OVERLAP_F_B",
                           "2 F0",
                           "1RECV_HEAD3",
                           "1RECV_HEAD(0S3",
                           "1RECV_HEAD(0W3)",
                           "1RECV_HEAD(1RECV_HEAD(0S3))",
                           "RECV_HEAD(0S3)"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_action(text), UsageError);
  }
}

TEST_CASE("a value for each pass is found by its kind, and an action that is no pass has none") {
  const auto all = PerPass<std::string>::each([](ActionKind pass) { return to_string({pass, 0, 0}); });
  CHECK(all.forward == "0F0");
  CHECK(all.backward == "0B0");
  CHECK(all.backward_input == "0I0");
  CHECK(all.backward_weight == "0W0");
  CHECK(all.head_forward == "0S0");
  CHECK(all.head_backward == "0T0");
  CHECK(all.of(ActionKind::backward_weight) == "0W0");
  CHECK_THROWS_WITH(all.of(ActionKind::send_f), "no value for 0SEND_F0, which is no pass");
}
