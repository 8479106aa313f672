#include "parallel/schedule/search/instance.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace pptrain::schedule {
namespace {

// F, I and W of a chunk that a rank has done.
using Done = std::array<int, 3>;
constexpr int most_chunks = 32;
constexpr int most_microbatches = 1 << 15;

// What a rank has done, and what it can do next.
class Progress {
 public:
  Progress(const Instance& instance, int rank) : in_(instance), rank_(rank) {}

  bool has_input(Letter letter) const {
    const auto& [forward, input, weight] = done_[in_.chunk_of(letter)];
    switch (in_.pass_of(letter)) {
      case Pass::forward:
        return forward < in_.microbatches;
      case Pass::input:
        return input < in_.can_go_back(forward);
      case Pass::weight:
        return weight < input;
      case Pass::backward:
        return weight == input && input < in_.can_go_back(forward);
    }
    return false;
  }

  bool has_room(Letter letter) const {
    return held_ + in_.most[stage(letter)][pass(letter)] <= in_.room[rank_];
  }

  bool can(Letter letter) const { return has_input(letter) && has_room(letter); }

  void run(Letter letter) {
    held_ += in_.left[stage(letter)][pass(letter)];
    Done& done = done_[in_.chunk_of(letter)];
    ++done[std::min<size_t>(pass(letter), 2)];
    if (in_.pass_of(letter) == Pass::backward) ++done[1];
  }

  bool complete() const {
    const int all = in_.microbatches;
    return std::all_of(done_.begin(), done_.begin() + in_.chunks, [&](const Done& done) {
      return done == Done{all, all, all};
    });
  }

  // Can `other` help a letter that cannot run now?
  bool helps(Letter letter, Letter other) const {
    if (has_input(letter)) return in_.pass_of(other) == Pass::weight && can(other);
    if (in_.chunk_of(other) != in_.chunk_of(letter)) return false;
    const auto& [forward, input, weight] = done_[in_.chunk_of(letter)];
    switch (in_.pass_of(letter)) {
      case Pass::weight:
        return in_.pass_of(other) == Pass::input;
      case Pass::backward:
        return in_.pass_of(other) == (weight < input ? Pass::weight : Pass::forward);
      default:
        return in_.pass_of(other) == Pass::forward;
    }
  }

 private:
  size_t pass(Letter letter) const { return static_cast<size_t>(in_.pass_of(letter)); }
  int stage(Letter letter) const { return in_.stage_of(rank_, in_.chunk_of(letter)); }

  const Instance& in_;
  int rank_;
  std::array<Done, most_chunks> done_{};
  int64_t held_ = 0;
};

}  // namespace

Instance::Instance(const SearchProblem& problem)
    : shape(problem.shape.without_actions()),
      ranks(shape.ranks),
      chunks(shape.stages_per_rank),
      stages(shape.stages()),
      microbatches(shape.microbatches),
      stage(static_cast<size_t>(stages)),
      after(static_cast<size_t>(stages)),
      room(problem.room) {
  if (chunks > most_chunks || microbatches > most_microbatches) {
    throw UsageError(
        fmt::format("search: an order is searched for at most {} stages per rank and {} microbatches",
                    most_chunks, most_microbatches));
  }
  for (int s = 0; s < stages; ++s) {
    rank_of.push_back(shape.rank_of(s));
    chunk.push_back(s / ranks);
    stage[static_cast<size_t>(rank_of[s] * chunks + chunk[s])] = s;
  }
  add_times(problem);
  add_bounds(problem.post_validated);
  add_loads(problem);
  if (room.empty()) room.assign(static_cast<size_t>(ranks), no_bound);
}

// A tick is a part of the busiest rank's work.
void Instance::add_times(const SearchProblem& problem) {
  const auto seconds = [&](int s, int pass) { return one_for(problem.costs.stages, s).time.of(kinds[pass]); };
  std::vector<double> work(static_cast<size_t>(ranks));
  for (int s = 0; s < stages; ++s) {
    for (int k = 0; k < 3; ++k) work[rank_of[s]] += microbatches * seconds(s, k);
  }
  constexpr double resolution = 1 << 30;
  const double most_work = std::ranges::max(work);
  if (most_work > 0) tick = most_work / resolution;
  const auto ticks = [&](double time) { return static_cast<int64_t>(std::llround(time / tick)); };
  for (int s = 0; s < stages; ++s) {
    auto& own = time.emplace_back();
    for (int k = 0; k < passes; ++k) own[k] = ticks(seconds(s, k));
    if (own[1] + own[2] - own[3] == 1) ++own[3];  // rounded: not shorter than I and W
    whole_backward |= own[3] < own[1] + own[2];
    const bool crosses = s + 1 < stages && shape.crosses_ranks(s);
    latency.push_back(crosses ? ticks(one_for(problem.costs.latency, s)) : 0);
  }
  for (const double of_rank : work) busiest = std::max(busiest, ticks(of_rank));
}

void Instance::add_bounds(bool post_validated) {
  const auto work = [&](int rank) {
    int64_t sum = 0;
    for (int c = 0; c < chunks; ++c) {
      const auto& own = time[stage_of(rank, c)];
      sum += microbatches * (own[0] + std::min(own[1] + own[2], own[3]));
    }
    return sum;
  };
  std::vector<int64_t> first(static_cast<size_t>(ranks));  // F of the rank's first stage
  for (int s = 0; s + 1 < ranks; ++s) first[rank_of[s + 1]] = first[rank_of[s]] + time[s][0] + latency[s];
  tail.assign(static_cast<size_t>(ranks), 0);
  for (int rank = 0; rank < ranks; ++rank) {
    if (post_validated) tail[rank] = std::ranges::max(first) - first[rank];
    least = std::max(least, first[rank] + work(rank) + tail[rank]);
  }
  const auto own_input = [&](int s) { return std::min(time[s][1], time[s][3]); };
  for (int s = 0; s < stages; ++s)
    after[s][1] = s == 0 ? 0 : after[s - 1][1] + latency[s - 1] + own_input(s - 1);
  int64_t turn = 0;
  for (int s = stages - 1; s >= 0; --s) {
    after[s][0] = turn + own_input(s) + after[s][1];
    turn += own_input(s) + (s > 0 ? 2 * latency[s - 1] + time[s][0] : 0);
  }
}

// Counts as Account (memory.cpp) does if messages between ranks are not posted early.
void Instance::add_loads(const SearchProblem& problem) {
  const auto handed_over = [&](int boundary) {
    const bool inside = boundary >= 0 && boundary + 1 < stages && rank_of[boundary] == rank_of[boundary + 1];
    return inside ? one_for(problem.bytes, boundary + 1).message : 0;
  };
  for (int s = 0; s < stages; ++s) {
    const StageBytes own = one_for(problem.bytes, s);
    const int64_t kept = handed_over(s) - handed_over(s - 1);
    left.push_back({own.activation + kept, own.weight_operands - own.activation - kept, -own.weight_operands,
                    -own.activation - kept});
    most.push_back({own.activation + own.workspace.forward, own.workspace.backward_input,
                    own.workspace.backward_weight, own.workspace.backward});
    for (int k = 0; k < passes; ++k) most[s][k] = std::max(most[s][k], left[s][k]);
  }
}

bool Instance::sound(int rank, const Letters& letters) const {
  Progress progress(*this, rank);
  for (const Letter letter : letters) {
    if (!progress.can(letter)) return false;
    progress.run(letter);
  }
  return progress.complete();
}

bool Instance::repair(int rank, Letters& letters, size_t first, size_t& last) const {
  Progress progress(*this, rank);
  for (size_t i = 0; i < first; ++i) progress.run(letters[i]);
  for (size_t i = first; i <= last;) {
    if (progress.can(letters[i])) {
      progress.run(letters[i++]);
      continue;
    }
    const auto at = letters.begin() + static_cast<std::ptrdiff_t>(i);
    const auto help =
        std::find_if(at + 1, letters.end(), [&](Letter other) { return progress.helps(*at, other); });
    if (help == letters.end()) return false;
    std::rotate(at, help, help + 1);
    last = std::max(last, static_cast<size_t>(help - letters.begin()));
  }
  return true;  // the rank has done what it had done there before
}

std::optional<Lists> Instance::lists_of(const Schedule& schedule) const {
  Lists lists(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const auto add = [&](const Action& part) {
      const int c = chunk[part.stage];
      const auto kind = std::ranges::find(kinds, part.kind);
      if (kind == std::end(kinds)) return;
      const auto pass = static_cast<Pass>(kind - kinds);
      if (pass == Pass::backward && !whole_backward) {
        lists[rank].insert(lists[rank].end(), {letter(Pass::input, c), letter(Pass::weight, c)});
      } else {
        lists[rank].push_back(letter(pass, c));
      }
    };
    for (const Action& action : schedule.actions[rank]) for_each_part(action, add);
    if (!sound(rank, lists[rank])) return std::nullopt;
  }
  return lists;
}

Schedule Instance::schedule_of(const Lists& lists) const {
  Schedule schedule = shape;
  for (int rank = 0; rank < ranks; ++rank) {
    std::array<Done, most_chunks> all{};
    for (const Letter letter : lists[rank]) {
      const int c = chunk_of(letter);
      const Pass pass = pass_of(letter);
      Done& done = all[c];
      const int n = done[pass == Pass::backward ? 1 : static_cast<size_t>(pass)]++;
      if (pass == Pass::backward) ++done[2];
      schedule.actions[rank].push_back(action(pass, stage_of(rank, c), n));
    }
  }
  return schedule;
}

}  // namespace pptrain::schedule
