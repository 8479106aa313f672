#include "parallel/schedule/cost/memory.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "parallel/schedule/cost/memory_history.h"

namespace pptrain::schedule {
namespace {

// The memory of one rank, while its list is walked.
class Account {
 public:
  // `bytes`: one per stage, or one per cell.
  Account(const Schedule& schedule, std::span<const StageBytes> bytes, MemoryHistory* history = nullptr)
      : s_(schedule),
        table_(schedule),
        bytes_(bytes),
        by_cell_(bytes.size() != static_cast<size_t>(schedule.stages())),
        messages_(schedule.has_communication()),
        history_(history) {
    if (by_cell_ && bytes.size() != schedule.cells())
      throw Error(fmt::format("peak_bytes: a schedule of {} stages and {} microbatches, bytes of {}",
                              schedule.stages(), schedule.microbatches, bytes.size()));
    if (history_ == nullptr) return;
    history_->uses.resize(schedule.cells());
    activation_since_.resize(schedule.cells());
    operands_since_.resize(schedule.cells());
  }

  MemorySplit run(int rank) {
    has_last_ = table_.rank_of.back() == rank;
    for (const Action& action : s_.actions[rank]) {
      const int64_t sent = std::exchange(leaving_, 0);
      if (is_receive(action.kind)) now_.buffers += message(action);
      if (is_send(action.kind)) leaving_ = message(action);
      if (action.kind == ActionKind::unshard) now_.gathered += of(action.stage, 0).gathered;
      if (action.kind == ActionKind::reshard) now_.gathered -= of(action.stage, 0).gathered;
      if (action.kind == ActionKind::reduce_grad) reduced_ += of(action.stage, 0).reducing;
      note();
      if (is_compute(action.kind)) {
        const int64_t reduced = std::exchange(reduced_, 0);
        const bool pair = action.kind == ActionKind::overlapped_pair;
        for_each_part(action, [&](const Action& part) {
          beside_.reset();
          if (pair) beside_ = part.kind == ActionKind::forward ? backward_of(action) : forward_of(action);
          compute(part);
        });
        now_.reducing -= reduced;
      }
      now_.buffers -= sent;
    }
    return peak_;
  }

 private:
  const StageBytes& of(int stage, int microbatch) const {
    return bytes_[by_cell_ ? s_.cell(stage, microbatch) : static_cast<size_t>(stage)];
  }
  const StageBytes& of(const Action& part) const { return of(part.stage, part.microbatch); }

  // Of a send or receive: the message of a boundary is the later stage's, in both directions.
  int64_t message(const Action& action) const {
    return of(std::max(action.stage, other_stage(action)), action.microbatch).message;
  }

  // What the rank holds of a microbatch for the boundary between a stage and the next: nothing if there is
  // none, or if it lies between ranks that exchange no messages.
  int64_t boundary(int stage, int microbatch) const {
    if (stage < 0 || stage + 1 >= s_.stages()) return 0;
    return messages_ || !table_.crosses[stage] ? of(stage + 1, microbatch).message : 0;
  }

  size_t moment() const { return history_->totals.size(); }
  size_t cell(const Action& part) const { return s_.cell(part.stage, part.microbatch); }
  // Up to the last moment so far.
  void use(const Action& part, int64_t StageBytes::*held, size_t begin) {
    if (history_ != nullptr) history_->uses[cell(part)].push_back({held, part.kind, begin, moment()});
  }

  void compute(const Action& part) {
    const StageBytes& stage = of(part);
    if (is_weight_gradient(part.kind)) now_.reducing += stage.reducing;
    switch (part.kind) {
      case ActionKind::forward:
        now_.buffers -= boundary(part.stage - 1, part.microbatch);
        now_.activations += stage.activation;
        if (history_ != nullptr) activation_since_[cell(part)] = moment();
        run_pass(part);
        if (s_.forward_only) now_.activations -= stage.activation;
        now_.buffers += boundary(part.stage, part.microbatch);
        break;
      case ActionKind::backward_weight:
        run_pass(part);
        if (history_ != nullptr) use(part, &StageBytes::weight_operands, operands_since_[cell(part)]);
        now_.weight_operands -= stage.weight_operands;
        break;
      case ActionKind::head_forward:
        now_.activations += stage.head;
        work(stage.workspace.head_forward);
        break;
      case ActionKind::head_backward:
        if (has_last_ && !s_.forward_only) now_.buffers += head_gradient(part);
        work(stage.workspace.head_backward);
        now_.activations -= stage.head;
        break;
      default:
        compute_backward(part);
    }
    note();
  }

  // B or I.
  void compute_backward(const Action& part) {
    const StageBytes& stage = of(part);
    const bool whole = part.kind == ActionKind::backward;
    if (part.stage + 1 == s_.stages()) now_.buffers -= head_gradient(part);
    now_.buffers -= boundary(part.stage, part.microbatch);
    run_pass(part);
    if (history_ != nullptr) use(part, &StageBytes::activation, activation_since_[cell(part)]);
    now_.activations -= stage.activation;
    if (!whole) now_.weight_operands += stage.weight_operands;
    if (!whole && history_ != nullptr) operands_since_[cell(part)] = moment();
    now_.buffers += boundary(part.stage - 1, part.microbatch);
  }

  int64_t head_gradient(const Action& part) const {
    return of(s_.stages() - 1, part.microbatch).head_gradient;
  }

  // F, B, I or W, with the other half of a pair.
  void run_pass(const Action& part) {
    int64_t bytes = of(part).workspace.of(part.kind);
    if (beside_) bytes += of(*beside_).workspace.of(beside_->kind);
    work(bytes);
    if (history_ == nullptr) return;
    use(part, /*held=*/nullptr, moment() - 1);
    if (beside_) use(*beside_, /*held=*/nullptr, moment() - 1);
  }

  void work(int64_t workspace) {
    now_.workspace = workspace;
    note();
    now_.workspace = 0;
  }

  void note() {
    if (now_.total() > peak_.total()) peak_ = now_;
    if (history_ != nullptr) history_->totals.push_back(now_.total());
  }

  const Schedule& s_;
  PlacementTable table_;
  std::span<const StageBytes> bytes_;
  bool by_cell_;
  bool messages_;
  bool has_last_ = false;  // the rank has the last stage
  MemorySplit now_, peak_;
  std::optional<Action> beside_;                           // the other half of a pair
  int64_t leaving_ = 0;                                    // sent by the last action
  int64_t reduced_ = 0;                                    // REDUCE_GRADs since the last compute action
  MemoryHistory* history_;                                 // null: not written
  std::vector<size_t> activation_since_, operands_since_;  // [cell] moment
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

MemorySplit peak_bytes(const Schedule& lowered, std::span<const StageBytes> bytes, int rank) {
  return Account(lowered, bytes).run(rank);
}

std::vector<MemorySplit> peak_bytes(const Schedule& lowered, std::span<const StageBytes> bytes) {
  std::vector<MemorySplit> peaks;
  for (int rank = 0; rank < lowered.ranks; ++rank) peaks.push_back(peak_bytes(lowered, bytes, rank));
  return peaks;
}

MemoryHistory memory_history(const Schedule& lowered, std::span<const StageBytes> bytes, int rank) {
  MemoryHistory history;
  Account(lowered, bytes, &history).run(rank);
  return history;
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
