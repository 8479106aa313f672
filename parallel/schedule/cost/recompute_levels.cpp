#include "parallel/schedule/cost/recompute_levels.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "parallel/schedule/cost/memory_history.h"

namespace pptrain::schedule {
namespace {

// The largest of many numbers, while ranges of them get larger or smaller: a tree over them. A node holds the
// largest number below it, without what was added to ranges that contain all of it further up.
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
    history_ = memory_history(schedule, start, rank);
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

  // Calls visit(use, bytes) for what the rank holds more of a microbatch after a change.
  template <typename Visit>
  void each_use(const Change& change, int microbatch, const Visit& visit) const {
    const StageBytes& before = of(change.from, change.stage, microbatch);
    const StageBytes& after = of(change.to, change.stage, microbatch);
    for (const MemoryHistory::Holding& use : history_.uses[s_.cell(change.stage, microbatch)])
      visit(use, use.of(after) - use.of(before));
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

  // Bytes times moments of the mean microbatch; next to nothing if the change frees memory.
  double held_longer(const Change& change) const {
    double sum = 0;
    for (int mb = 0; mb < s_.microbatches; ++mb) {
      each_use(change, mb, [&](const MemoryHistory::Holding& use, int64_t bytes) {
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
    each_use(change, microbatch, [&](const MemoryHistory::Holding& use, int64_t bytes) {
      total_->add(use.begin, use.end, bytes);
    });
    if (total_->of_all() <= room_) return true;
    each_use(change, microbatch, [&](const MemoryHistory::Holding& use, int64_t bytes) {
      total_->add(use.begin, use.end, -bytes);
    });
    return false;
  }

  const Schedule& s_;
  std::vector<int> stages_;
  Bytes bytes_;
  Seconds seconds_;
  int64_t room_;
  MemoryHistory history_;
  std::optional<Maximum> total_;  // of the rank at each moment, bytes
  std::vector<int> levels_;       // [cell]
};

}  // namespace

std::vector<int> recompute_levels(const Schedule& lowered, int rank,
                                  std::span<const std::vector<StageBytes>> bytes,
                                  std::span<const std::vector<double>> seconds, std::span<const int> levels,
                                  int64_t room) {
  return LevelChooser(lowered, rank, bytes, seconds, levels, room).run();
}

}  // namespace pptrain::schedule
