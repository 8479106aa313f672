// The words of a pipeline schedule.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pptrain::schedule {

enum class ActionKind : uint8_t {
  forward,          // F
  backward,         // B: input and weight gradient at once
  backward_input,   // I
  backward_weight,  // W
  head_forward,     // S: logits of this rank's part of a spread head, once the last stage has done F
  head_backward,    // T: the part's loss and gradients, once all ranks have done S
  send_f,           // SEND_F: this stage's output to the next stage's rank
  recv_f,           // RECV_F: this stage's input from the previous stage's rank
  send_b,           // SEND_B: this stage's input gradient to the previous stage's rank
  recv_b,           // RECV_B: this stage's output gradient from the next stage's rank
  recv_head,        // RECV_HEAD: a message of a spread head, posted ahead of the pass that uses it
  unshard,          // UNSHARD: the stage's weights are gathered from the ranks that they are sharded over
  reshard,          // RESHARD: what was gathered is freed
  reduce_grad,      // REDUCE_GRAD: the stage's gradients are summed over the ranks that have other samples
  overlapped_pair,  // OVERLAP_F_B: a forward and a backward of another microbatch, scheduled as one
};

// What is done, to which microbatch of which stage. A list holds millions of them: no part is on the heap.
struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;        // of an overlapped pair: its forward's, like `microbatch`
  int microbatch = -1;  // -1 for actions of a whole stage
  // Of an overlapped pair: its backward, B or I. Of RECV_HEAD the F, S or T that makes the message, of the
  // same microbatch.
  int backward_stage = -1;
  int backward_microbatch = -1;
  ActionKind backward_kind = ActionKind::backward;

  friend bool operator==(const Action&, const Action&) = default;
};

constexpr Action forward(int stage, int microbatch) {
  return {ActionKind::forward, stage, microbatch};
}
constexpr Action backward(int stage, int microbatch) {
  return {ActionKind::backward, stage, microbatch};
}
constexpr Action backward_input(int stage, int microbatch) {
  return {ActionKind::backward_input, stage, microbatch};
}
constexpr Action head_forward(int rank, int microbatch) {
  return {ActionKind::head_forward, rank, microbatch};
}
constexpr Action head_backward(int rank, int microbatch) {
  return {ActionKind::head_backward, rank, microbatch};
}
constexpr Action backward_weight(int stage, int microbatch) {
  return {ActionKind::backward_weight, stage, microbatch};
}

constexpr bool is_of_head(ActionKind kind) {  // S or T; their stage is the rank's first one
  return kind == ActionKind::head_forward || kind == ActionKind::head_backward;
}
constexpr bool is_compute(ActionKind kind) {  // F, B, I, W, S, T or an overlapped pair
  return kind <= ActionKind::head_backward || kind == ActionKind::overlapped_pair;
}
constexpr bool is_send(ActionKind kind) {
  return kind == ActionKind::send_f || kind == ActionKind::send_b;
}
constexpr bool is_receive(ActionKind kind) {
  return kind == ActionKind::recv_f || kind == ActionKind::recv_b;
}
constexpr bool is_communication(ActionKind kind) {
  return is_send(kind) || is_receive(kind) || kind == ActionKind::recv_head;
}
// The stage at the other end of a send or a receive.
constexpr int other_stage(const Action& message) {
  const bool upwards = message.kind == ActionKind::send_f || message.kind == ActionKind::recv_b;
  return message.stage + (upwards ? 1 : -1);
}
constexpr bool is_weight_gradient(ActionKind kind) {  // B or W: what adds to the gradients of a stage
  return kind == ActionKind::backward || kind == ActionKind::backward_weight;
}
constexpr bool needs_weights(ActionKind kind) {  // all but W, which needs its operands, and adapters
  return kind <= ActionKind::backward_input || is_of_head(kind);
}
constexpr bool is_gradient(ActionKind kind) {  // B or I: what produces the gradient of a stage's input
  return kind == ActionKind::backward || kind == ActionKind::backward_input;
}

// RECV_HEAD on a rank: of the last stage's F, or of another rank's S or T, of the same microbatch.
constexpr Action receive_of_head(int rank, const Action& maker) {
  return {ActionKind::recv_head, rank, maker.microbatch, maker.stage, maker.microbatch, maker.kind};
}
constexpr Action maker_of(const Action& receive_of_head) {
  return {receive_of_head.backward_kind, receive_of_head.backward_stage, receive_of_head.microbatch};
}

// A forward and a B or I as one action. Throws Error if they are anything else.
Action overlapped(const Action& forward, const Action& backward);

// The two of an overlapped pair.
constexpr Action forward_of(const Action& pair) {
  return forward(pair.stage, pair.microbatch);
}
constexpr Action backward_of(const Action& pair) {
  return {pair.backward_kind, pair.backward_stage, pair.backward_microbatch};
}

// Calls `visit` with the action itself, or with the forward and then the backward of an overlapped pair.
template <typename Visit>
constexpr void for_each_part(const Action& action, Visit&& visit) {
  if (action.kind != ActionKind::overlapped_pair) {
    visit(action);
    return;
  }
  visit(forward_of(action));
  visit(backward_of(action));
}

// PyTorch's text: "2F0", "1SEND_F3", "0UNSHARD", "(0F3;3B0)OVERLAP_F_B"; and "1RECV_HEAD(0S3)".
std::string to_string(const Action& action);
// "RECV_F stage 5 microbatch 7"; of a pair as to_string.
std::string in_words(const Action& action);
// Throws UsageError on text that is not an action. PyTorch's
// FULL_BACKWARD is read as B.
Action parse_action(std::string_view text);

}  // namespace pptrain::schedule
