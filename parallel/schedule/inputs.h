// What each pass waits for: told once, for proofs, predictions and makers of lists.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// The F, or B or I, whose input or output the message is.
constexpr Action pass_of(const Action& message) {
  const bool forwards = message.kind == ActionKind::send_f || message.kind == ActionKind::recv_f;
  return {forwards ? ActionKind::forward : ActionKind::backward, message.stage, message.microbatch};
}

// The pass that makes what another pass of its microbatch needs.
struct Input {
  Action pass;
  int boundary = -1;  // that the output crosses from rank to rank; the last stage's: on its way to or from S
                      // and T of a spread head. -1: none
};

class Inputs {
 public:
  // The schedule must outlive this. Its lists are not read.
  explicit Inputs(const Schedule& schedule) : s_(schedule), table_(schedule), last_(schedule.stages() - 1) {}

  // Of an F, B, I, W, S or T; nothing for the first stage's F. What S or T makes is there once all ranks have
  // done theirs.
  std::optional<Input> of(const Action& pass) const {
    const int stage = pass.stage, mb = pass.microbatch;
    switch (pass.kind) {
      case ActionKind::forward:
        if (stage == 0) return std::nullopt;
        return Input{forward(stage - 1, mb), crossed(stage - 1)};
      case ActionKind::backward_weight:
        return Input{backward(stage, mb)};
      case ActionKind::head_forward:
        return Input{forward(last_, mb), stage == table_.rank_of[last_] ? -1 : last_};
      case ActionKind::head_backward:
        return Input{head_forward(stage, mb)};
      default:
        if (stage < last_) return Input{backward(stage + 1, mb), crossed(stage)};
        return s_.spread_head ? Input{head_backward(stage, mb), last_} : Input{forward(stage, mb)};
    }
  }

  // Does an F, B or I make what goes to another stage's rank?
  bool crosses(const Action& pass) const {
    const int boundary = pass.kind == ActionKind::forward ? pass.stage : pass.stage - 1;
    return !is_of_head(pass.kind) && boundary >= 0 && boundary < last_ && table_.crosses[boundary];
  }

  // How many ranks make what the pass does: all of them S and T.
  int makers(const Action& pass) const { return is_of_head(pass.kind) ? s_.ranks : 1; }

  // Calls visit(rank, Input::boundary) for each rank that needs what an F, B, I, S or T makes.
  template <typename Visit>
  void for_each_user(const Action& pass, Visit&& visit) const {
    const int stage = pass.stage, last_rank = table_.rank_of[last_];
    switch (pass.kind) {
      case ActionKind::forward:
        if (stage < last_) return visit(table_.rank_of[stage + 1], crossed(stage));
        if (!s_.spread_head) return visit(last_rank, -1);
        for (int rank = 0; rank < s_.ranks; ++rank) visit(rank, rank == last_rank ? -1 : last_);
        return;
      case ActionKind::head_forward:
        for (int rank = 0; rank < s_.ranks; ++rank) visit(rank, -1);
        return;
      case ActionKind::head_backward:
        return visit(last_rank, last_);
      default:
        if (stage > 0) visit(table_.rank_of[stage - 1], crossed(stage - 1));
    }
  }

 private:
  int crossed(int boundary) const { return table_.crosses[boundary] ? boundary : -1; }

  const Schedule& s_;
  PlacementTable table_;
  int last_;  // stage
};

// A value for what each F makes, and each B or I, and S and T of all ranks. W makes nothing for others.
template <typename T>
class PassTable {
 public:
  explicit PassTable(const Schedule& schedule, T value = {})
      : cells_(schedule.cells()),
        microbatches_(static_cast<size_t>(schedule.microbatches)),
        values_(2 * cells_ + (schedule.spread_head ? 2 * microbatches_ : 0), value) {}

  T& operator[](const Action& pass) { return values_[place(pass)]; }
  const T& operator[](const Action& pass) const { return values_[place(pass)]; }

  size_t size() const { return values_.size(); }
  size_t place(const Action& pass) const {
    const auto mb = static_cast<size_t>(pass.microbatch);
    const size_t cell = static_cast<size_t>(pass.stage) * microbatches_ + mb;
    if (pass.kind == ActionKind::forward) return cell;
    if (!is_of_head(pass.kind)) return cells_ + cell;
    return 2 * cells_ + (pass.kind == ActionKind::head_forward ? 0 : microbatches_) + mb;
  }

 private:
  size_t cells_, microbatches_;
  std::vector<T> values_;
};

}  // namespace pptrain::schedule
