// The words of a pipeline schedule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pptrain::schedule {

enum class ActionKind : uint8_t {
  forward,          // F
  backward,         // B: input and weight gradient at once
  backward_input,   // I
  backward_weight,  // W
  send_f,           // SEND_F: this stage's output to the next stage's rank
  recv_f,           // RECV_F: this stage's input from the previous stage's rank
  send_b,           // SEND_B: this stage's input gradient to the previous stage's rank
  recv_b,           // RECV_B: this stage's output gradient from the next stage's rank
  unshard,          // UNSHARD
  reshard,          // RESHARD
  reduce_grad,      // REDUCE_GRAD: of a stage, after its last weight gradient
  overlapped_pair,  // OVERLAP_F_B: the two actions of `pair`, run as one
};

struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;
  int microbatch = -1;       // -1 for actions of a whole stage
  std::vector<Action> pair;  // overlapped_pair only: a forward, then a backward

  friend bool operator==(const Action&, const Action&) = default;
};

Action forward(int stage, int microbatch);
Action backward(int stage, int microbatch);
Action backward_input(int stage, int microbatch);
Action backward_weight(int stage, int microbatch);
Action overlapped(Action forward, Action backward);

bool is_compute(ActionKind kind);        // F, B, I, W or an overlapped pair
bool is_communication(ActionKind kind);  // the four sends and receives

bool is_send(ActionKind kind);
bool is_receive(ActionKind kind);
bool is_gradient(ActionKind kind);  // B or I: what produces the gradient of a stage's input

// Calls `visit` with the action itself, or with each of the two of an overlapped pair.
template <typename Visit>
void for_each_part(const Action& action, Visit&& visit) {
  if (action.kind != ActionKind::overlapped_pair) {
    visit(action);
    return;
  }
  for (const Action& part : action.pair) visit(part);
}

// PyTorch's text: "2F0", "1SEND_F3", "0UNSHARD", "(0F3;3B0)OVERLAP_F_B".
std::string to_string(const Action& action);
// Throws UsageError on text that is not an action. PyTorch's FULL_BACKWARD is read as B.
Action parse_action(const std::string& text);

}  // namespace pptrain::schedule
