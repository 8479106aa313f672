#include "parallel/schedule/cost/memory.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/base/error.h"

namespace pptrain::schedule {
namespace {

// One rank's, while its list is walked.
class Account {
 public:
  Account(const Schedule& schedule, PlacementTable table, std::span<const StageBytes> stages, bool messages)
      : s_(schedule), table_(std::move(table)), stages_(stages), messages_(messages) {}

  MemorySplit run(int rank) {
    has_last_ = table_.rank_of.back() == rank;
    for (const Action& action : s_.actions[rank]) {
      const int64_t sent = std::exchange(leaving_, 0);
      if (is_receive(action.kind)) now_.buffers += message(action);
      if (is_send(action.kind)) leaving_ = message(action);
      if (action.kind == ActionKind::unshard) now_.gathered += stages_[action.stage].gathered;
      if (action.kind == ActionKind::reshard) now_.gathered -= stages_[action.stage].gathered;
      if (action.kind == ActionKind::reduce_grad) reduced_ += stages_[action.stage].reducing;
      note();
      if (is_compute(action.kind)) {
        const int64_t reduced = std::exchange(reduced_, 0);
        const bool pair = action.kind == ActionKind::overlapped_pair;
        for_each_part(action, [&](const Action& part) {
          const Action other = part.kind == ActionKind::forward ? backward_of(action) : forward_of(action);
          beside_ = pair ? workspace(other) : 0;
          compute(part);
        });
        now_.reducing -= reduced;
      }
      now_.buffers -= sent;
    }
    return peak_;
  }

 private:
  // Of a send or receive: forward over the boundary before the stage that takes it, backward the same back.
  int64_t message(const Action& action) const {
    return stages_[std::max(action.stage, other_stage(action))].message;
  }

  // What the rank holds for the boundary between a stage and the next: nothing where there is none, or where
  // it lies between ranks that exchange no messages.
  int64_t boundary(int stage) const {
    if (stage < 0 || stage + 1 >= s_.stages()) return 0;
    return messages_ || !table_.crosses[stage] ? stages_[stage + 1].message : 0;
  }

  // Of F, B or I.
  int64_t workspace(const Action& part) const {
    const StageBytes& stage = stages_[part.stage];
    if (part.kind == ActionKind::forward) return stage.workspace_forward;
    return part.kind == ActionKind::backward ? stage.workspace_backward : stage.workspace_backward_input;
  }

  void compute(const Action& part) {
    const StageBytes& stage = stages_[part.stage];
    if (is_weight_gradient(part.kind)) now_.reducing += stage.reducing;
    switch (part.kind) {
      case ActionKind::forward:
        now_.buffers -= boundary(part.stage - 1);
        now_.activations += stage.activation;
        work(workspace(part));
        if (s_.forward_only) now_.activations -= stage.activation;
        now_.buffers += boundary(part.stage);
        break;
      case ActionKind::backward_weight:
        work(stage.workspace_backward_weight);
        now_.weight_operands -= stage.weight_operands;
        break;
      case ActionKind::head_forward:
        now_.activations += stage.head;
        work(stage.workspace_head_forward);
        break;
      case ActionKind::head_backward:
        if (has_last_ && !s_.forward_only) now_.buffers += stages_.back().head_gradient;
        work(stage.workspace_head_backward);
        now_.activations -= stage.head;
        break;
      default:  // B, I
        const bool whole = part.kind == ActionKind::backward;
        if (part.stage + 1 == s_.stages()) now_.buffers -= stages_.back().head_gradient;
        now_.buffers -= boundary(part.stage);
        work(workspace(part));
        now_.activations -= stage.activation;
        if (!whole) now_.weight_operands += stage.weight_operands;
        now_.buffers += boundary(part.stage - 1);
    }
    note();
  }

  void work(int64_t workspace) {
    now_.workspace = workspace + beside_;
    note();
    now_.workspace = 0;
  }

  void note() {
    if (now_.total() > peak_.total()) peak_ = now_;
  }

  const Schedule& s_;
  PlacementTable table_;
  std::span<const StageBytes> stages_;
  bool messages_;
  bool has_last_ = false;  // the rank has the last stage
  MemorySplit now_, peak_;
  int64_t beside_ = 0;   // workspace of the other half of a pair
  int64_t leaving_ = 0;  // sent by the last action
  int64_t reduced_ = 0;  // REDUCE_GRADs since the last compute action
};

class Counter {
 public:
  Counter(const Schedule& schedule, const PlacementTable& table, int rank, bool messages)
      : s_(schedule), table_(table), list_(schedule.actions[rank]), messages_(messages) {}

  InFlight run() {
    for (const Action& action : list_) {
      if (is_receive(action.kind)) ++buffers_;
      for_each_part(action, [&](const Action& part) {
        if (part.kind == ActionKind::forward && !s_.forward_only) ++activations_;
      });
      note();
      for_each_part(action, [&](const Action& part) { finish(part); });
      note();
    }
    return peak_;
  }

 private:
  void finish(const Action& part) {
    const bool from_previous = part.stage > 0 && table_.crosses[part.stage - 1];
    const bool from_next = part.stage + 1 < s_.stages() && table_.crosses[part.stage];
    if (messages_ && part.kind == ActionKind::forward && from_previous) --buffers_;
    if (messages_ && is_gradient(part.kind) && from_next) --buffers_;
    if (is_gradient(part.kind)) --activations_;
    if (part.kind == ActionKind::backward_input) ++operands_;
    if (part.kind == ActionKind::backward_weight) --operands_;
  }

  void note() {
    peak_.activations = std::max(peak_.activations, activations_);
    peak_.weight_operands = std::max(peak_.weight_operands, operands_);
    peak_.held = std::max(peak_.held, activations_ + operands_);
    peak_.receive_buffers = std::max(peak_.receive_buffers, buffers_);
  }

  const Schedule& s_;
  const PlacementTable& table_;
  const std::vector<Action>& list_;
  bool messages_;
  InFlight peak_;
  int activations_ = 0;
  int operands_ = 0;
  int buffers_ = 0;
};

}  // namespace

MemorySplit peak_bytes(const Schedule& lowered, std::span<const StageBytes> per_stage, int rank) {
  if (static_cast<int>(per_stage.size()) != lowered.stages()) {
    throw Error(
        fmt::format("peak_bytes: a schedule of {} stages, bytes of {}", lowered.stages(), per_stage.size()));
  }
  return Account(lowered, PlacementTable(lowered), per_stage, lowered.has_communication()).run(rank);
}

std::vector<MemorySplit> peak_bytes(const Schedule& lowered, std::span<const StageBytes> per_stage) {
  std::vector<MemorySplit> peaks;
  for (int rank = 0; rank < lowered.ranks; ++rank) peaks.push_back(peak_bytes(lowered, per_stage, rank));
  return peaks;
}

std::vector<InFlight> in_flight(const Schedule& schedule) {
  const bool messages = schedule.has_communication();
  const PlacementTable table(schedule);
  std::vector<InFlight> peaks;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    peaks.push_back(Counter(schedule, table, rank, messages).run());
  }
  return peaks;
}

}  // namespace pptrain::schedule
