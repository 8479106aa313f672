#include "parallel/schedule/cost/memory.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "core/base/error.h"

namespace pptrain::schedule {
namespace {

// While a walk holds something of one microbatch on one stage: from moment `begin` to one before `end`.
struct Use {
  int64_t StageBytes::*what;
  size_t begin;
  size_t end;
};

struct History {
  std::vector<int64_t> totals;         // [moment] of the walk: bytes of the rank
  std::vector<std::vector<Use>> uses;  // [cell] of what differs with recompute
};

// One rank's, while its list is walked.
class Account {
 public:
  // `bytes`: one per stage, or one per cell.
  Account(const Schedule& schedule, std::span<const StageBytes> bytes, History* history = nullptr)
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

  // Of a send or receive: forward over the boundary before the stage that takes it, backward the same back.
  int64_t message(const Action& action) const {
    return of(std::max(action.stage, other_stage(action)), action.microbatch).message;
  }

  // What the rank holds of a microbatch for the boundary between a stage and the next: nothing where there is
  // none, or where it lies between ranks that exchange no messages.
  int64_t boundary(int stage, int microbatch) const {
    if (stage < 0 || stage + 1 >= s_.stages()) return 0;
    return messages_ || !table_.crosses[stage] ? of(stage + 1, microbatch).message : 0;
  }

  // Of F, B, I or W.
  static int64_t StageBytes::*workspace(ActionKind kind) {
    if (kind == ActionKind::forward) return &StageBytes::workspace_forward;
    if (kind == ActionKind::backward) return &StageBytes::workspace_backward;
    return kind == ActionKind::backward_input ? &StageBytes::workspace_backward_input
                                              : &StageBytes::workspace_backward_weight;
  }

  size_t moment() const { return history_->totals.size(); }
  size_t cell(const Action& part) const { return s_.cell(part.stage, part.microbatch); }
  // Up to the last moment so far.
  void use(const Action& part, int64_t StageBytes::*what, size_t begin) {
    if (history_ != nullptr) history_->uses[cell(part)].push_back({what, begin, moment()});
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
        work(stage.workspace_head_forward);
        break;
      case ActionKind::head_backward:
        if (has_last_ && !s_.forward_only) now_.buffers += head_gradient(part);
        work(stage.workspace_head_backward);
        now_.activations -= stage.head;
        break;
      default:  // B, I
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
    note();
  }

  int64_t head_gradient(const Action& part) const {
    return of(s_.stages() - 1, part.microbatch).head_gradient;
  }

  // F, B, I or W, with the other half of a pair.
  void run_pass(const Action& part) {
    int64_t bytes = of(part).*workspace(part.kind);
    if (beside_) bytes += of(*beside_).*workspace(beside_->kind);
    work(bytes);
    if (history_ == nullptr) return;
    use(part, workspace(part.kind), moment() - 1);
    if (beside_) use(*beside_, workspace(beside_->kind), moment() - 1);
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
  History* history_;                                       // null: not written
  std::vector<size_t> activation_since_, operands_since_;  // [cell] moment
};

// Numbers of which ranges get larger or smaller, and the largest is wanted: a tree over them, whose nodes
// hold the largest number below, without what was added to ranges that contain all of it further up.
class Maximum {
 public:
  explicit Maximum(const std::vector<int64_t>& values)
      : size_(std::bit_ceil(std::max<size_t>(1, values.size()))) {
    largest_.assign(2 * size_, std::numeric_limits<int64_t>::min() / 2);
    added_.assign(2 * size_, 0);
    std::ranges::copy(values, largest_.begin() + static_cast<ptrdiff_t>(size_));
    for (size_t node = size_ - 1; node > 0; --node)
      largest_[node] = std::max(largest_[2 * node], largest_[2 * node + 1]);
  }

  int64_t of_all() const { return largest_[1]; }

  void add(size_t begin, size_t end, int64_t value) {
    const size_t first = begin + size_, last = end + size_ - 1;
    for (size_t l = first, r = last + 1; l < r; l /= 2, r /= 2) {
      if (l % 2 == 1) add_to(l++, value);
      if (r % 2 == 1) add_to(--r, value);
    }
    for (const size_t leaf : {first, last}) {
      for (size_t node = leaf / 2; node > 0; node /= 2)
        largest_[node] = std::max(largest_[2 * node], largest_[2 * node + 1]) + added_[node];
    }
  }

 private:
  void add_to(size_t node, int64_t value) {
    largest_[node] += value;
    added_[node] += value;
  }

  size_t size_;
  std::vector<int64_t> largest_, added_;  // [node] from 1; children of n: 2 n, 2 n + 1
};

// Lowers levels of one rank's microbatches one by one.
class LevelChooser {
 public:
  using Bytes = std::span<const std::vector<StageBytes>>;  // [level]
  using Seconds = std::span<const std::vector<double>>;    // [level][stage]

  LevelChooser(const Schedule& schedule, int rank, Bytes bytes, Seconds seconds, std::span<const int> levels,
               int64_t room)
      : s_(schedule),
        stages_(schedule.stages_of(rank)),
        bytes_(bytes),
        seconds_(seconds),
        room_(room),
        levels_(schedule.cells()) {
    std::vector<StageBytes> start(schedule.cells());
    for (int stage = 0; stage < s_.stages(); ++stage) {
      for (int mb = 0; mb < s_.microbatches; ++mb) start[s_.cell(stage, mb)] = of(levels[stage], stage, mb);
    }
    Account(schedule, start, &history_).run(rank);
    total_.emplace(history_.totals);
    for (const int stage : stages_)
      std::fill_n(levels_.begin() + static_cast<ptrdiff_t>(s_.cell(stage, 0)), s_.microbatches,
                  levels[stage]);
  }

  std::vector<int> run() {
    const std::vector<Change> changes = sorted_changes();
    while (total_->of_all() <= room_ && apply(changes)) continue;
    return std::move(levels_);
  }

 private:
  struct Change {  // of microbatches of one stage
    int stage;
    int from;
    int to;
    double gain;  // seconds for a byte and a moment
  };

  const StageBytes& of(int level, int stage, int microbatch) const {
    const std::vector<StageBytes>& own = bytes_[static_cast<size_t>(level)];
    return own[own.size() == static_cast<size_t>(s_.stages()) ? static_cast<size_t>(stage)
                                                              : s_.cell(stage, microbatch)];
  }

  // What the rank holds more of a microbatch after a change: visit(use, bytes).
  template <typename Visit>
  void each_use(const Change& change, int microbatch, const Visit& visit) const {
    const StageBytes& before = of(change.from, change.stage, microbatch);
    const StageBytes& after = of(change.to, change.stage, microbatch);
    for (const Use& use : history_.uses[s_.cell(change.stage, microbatch)])
      visit(use, after.*use.what - before.*use.what);
  }

  std::vector<Change> sorted_changes() const {
    std::vector<Change> changes;
    for (const int stage : stages_) {
      for (int from = 1; from < static_cast<int>(bytes_.size()); ++from) {
        for (int to = 0; to < from; ++to) {
          const double saved = seconds_[from][stage] - seconds_[to][stage];
          if (saved > 0) changes.push_back({stage, from, to, saved / held_longer({stage, from, to, 0})});
        }
      }
    }
    std::ranges::stable_sort(changes, std::greater(), &Change::gain);
    return changes;
  }

  // Bytes times moments of the mean microbatch; next to nothing where the change frees memory.
  double held_longer(const Change& change) const {
    double sum = 0;
    for (int mb = 0; mb < s_.microbatches; ++mb) {
      each_use(change, mb, [&](const Use& use, int64_t bytes) {
        sum += static_cast<double>(bytes) * static_cast<double>(use.end - use.begin);
      });
    }
    return std::max(sum / s_.microbatches, std::numeric_limits<double>::min());
  }

  // Was anything changed?
  bool apply(const std::vector<Change>& changes) {
    bool changed = false;
    for (const Change& change : changes) {
      for (int mb = s_.microbatches - 1; mb >= 0; --mb) {
        int& level = levels_[s_.cell(change.stage, mb)];
        if (level != change.from || !fits(change, mb)) continue;
        level = change.to;
        changed = true;
      }
    }
    return changed;
  }

  // Counts the change, unless it does not fit.
  bool fits(const Change& change, int microbatch) {
    each_use(change, microbatch,
             [&](const Use& use, int64_t bytes) { total_->add(use.begin, use.end, bytes); });
    if (total_->of_all() <= room_) return true;
    each_use(change, microbatch,
             [&](const Use& use, int64_t bytes) { total_->add(use.begin, use.end, -bytes); });
    return false;
  }

  const Schedule& s_;
  std::vector<int> stages_;
  Bytes bytes_;
  Seconds seconds_;
  int64_t room_;
  History history_;
  std::optional<Maximum> total_;  // of the rank at each moment, bytes
  std::vector<int> levels_;       // [cell]
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

std::vector<int> recompute_levels(const Schedule& lowered, int rank,
                                  std::span<const std::vector<StageBytes>> bytes,
                                  std::span<const std::vector<double>> seconds, std::span<const int> levels,
                                  int64_t room) {
  return LevelChooser(lowered, rank, bytes, seconds, levels, room).run();
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
