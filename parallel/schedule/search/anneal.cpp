// Improves lists by moves along the critical path, with simulated annealing. A move walks only what it may
// change.
#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "parallel/schedule/search/instance.h"

namespace pptrain::schedule {
namespace {

// Lists with their times, one change of one rank's list at a time: if every rank runs its list as soon as
// it can.
class Walk {
 public:
  Walk(const Instance& instance, Lists lists);

  const Lists& lists() const { return lists_; }
  int64_t end() const { return now_.end; }

  // A rank's list, which is sound and differs from the rank's in [first, last], or in length too.
  struct Change {
    int rank = 0;
    size_t first = 0, last = 0;
    Letters letters{};
  };
  // Takes the lists, of a rank each, unless the step then ends after `limit`; says whether it did.
  bool replace(std::span<Change> changes, int64_t limit);

  // Places (rank, position) on a longest path, of passes that begin when the one before them on their rank
  // ends.
  struct Place {
    int rank;
    int position;
  };
  const std::vector<Place>& critical();

  // The microbatch of the F, I or B at the place; and the place of its F or I (or B) in its rank's list.
  int microbatch_at(const Place& place) const {
    return nth_[static_cast<size_t>(place.rank) * width_ + static_cast<size_t>(place.position)];
  }
  int position_of(int which, int stage, int microbatch) const {
    return position_[cell(which, stage, microbatch)];
  }

  int64_t passes_walked() const { return walked_; }

 private:
  struct Times {
    std::vector<int64_t> start;   // [rank x position]
    std::vector<int64_t> finish;  // [rank x position]
    std::vector<int64_t> made;    // [2 (F, I) x stage x microbatch] when it ends
    int64_t end = 0;
  };
  // Properties of a letter of a rank.
  struct Step {
    int64_t time = 0;
    int64_t latency = 0;   // of its input
    int64_t after = 0;     // least from its end to the step's; of W 0
    int count = 0;         // in `done_`
    int other_count = -1;  // B: also
    int needed = -1;       // in `done_`, of the pass that makes its input; -1: none
    int input = 0;         // cell of the first microbatch of that pass
    int output = -1;       // and of its own; W: -1
    int target = -1;       // the rank that takes it
  };
  struct Rank {
    size_t position = 0;
    int64_t free = 0;
    int64_t left = 0;       // work
    size_t blocked = none;  // the cell that it waits for
  };
  static constexpr size_t none = ~size_t{0};

  Place last() const;  // the pass that ends the step
  int64_t work(int rank, const Letters& letters) const;
  bool run(int64_t limit);
  bool run_rank(int rank, int64_t limit);
  void begin_at(int64_t time);
  void keep_before(int64_t time);
  void count(int rank, size_t first, size_t last);
  Step step_of(int rank, Letter letter) const;

  size_t cell(int which, int stage, int microbatch) const {
    return static_cast<size_t>((which * in_.stages + stage) * in_.microbatches + microbatch);
  }

  const Instance& in_;
  Lists lists_;
  size_t width_;                  // of the arrays by position
  std::vector<uint16_t> counts_;  // [rank x position x chunk x 3] passes done before the position
  std::vector<int64_t> left_;     // [rank x position] work from there on, and the rank's tail
  std::vector<uint16_t> nth_;     // [rank x position] the microbatch of an F, I or B
  std::vector<int> position_;     // [2 (F, I) x stage x microbatch] in its rank's list
  Times now_, trial_;
  std::vector<Step> steps_;  // [rank x letter]
  std::vector<Rank> ranks_;
  std::vector<uint16_t> done_;  // [rank x chunk x 3] while it runs
  std::vector<int> queue_;
  std::vector<Place> critical_;
  bool critical_known_ = false;
  int64_t walked_ = 0;
};

Walk::Walk(const Instance& instance, Lists lists) : in_(instance), lists_(std::move(lists)) {
  width_ = static_cast<size_t>(3 * in_.chunks * in_.microbatches) + 1;
  const size_t places = width_ * static_cast<size_t>(in_.ranks);
  const size_t cells = static_cast<size_t>(2 * in_.stages) * static_cast<size_t>(in_.microbatches);
  for (Times* times : {&now_, &trial_}) {
    times->start.resize(places);
    times->finish.resize(places);
    times->made.resize(cells);
  }
  counts_.resize(places * static_cast<size_t>(3 * in_.chunks));
  left_.resize(places);
  nth_.resize(places);
  position_.resize(cells);
  ranks_.resize(static_cast<size_t>(in_.ranks));
  done_.resize(static_cast<size_t>(in_.ranks * in_.chunks * 3));
  for (int rank = 0; rank < in_.ranks; ++rank) {
    for (int letter = 0; letter < passes * in_.chunks; ++letter)
      steps_.push_back(step_of(rank, static_cast<Letter>(letter)));
    left_[static_cast<size_t>(rank) * width_ + lists_[rank].size()] = in_.tail[rank];
    count(rank, 0, lists_[rank].size() - 1);
  }
  begin_at(-1);
  run(Instance::no_bound);
  std::swap(now_, trial_);
}

// Counts what follows from the letters in [first, last]; before and behind them all is as it was.
void Walk::count(int rank, size_t first, size_t last) {
  const Letters& letters = lists_[rank];
  const Step* steps = steps_.data() + static_cast<size_t>(rank * passes * in_.chunks);
  const size_t kinds = static_cast<size_t>(3 * in_.chunks);
  const size_t row = static_cast<size_t>(rank) * width_;
  const int of_rank = rank * 3 * in_.chunks;
  uint16_t* before = counts_.data() + (row + first) * kinds;
  for (size_t i = first; i <= last; ++i, before += kinds) {
    std::copy(before, before + kinds, before + kinds);
    const Step& step = steps[letters[i]];
    const int n = before[kinds + static_cast<size_t>(step.count - of_rank)]++;
    if (step.other_count >= 0) ++before[kinds + static_cast<size_t>(step.other_count - of_rank)];
    if (step.output < 0) continue;
    nth_[row + i] = static_cast<uint16_t>(n);
    position_[static_cast<size_t>(step.output + n)] = static_cast<int>(i);
  }
  for (size_t i = last + 1; i-- > first;) left_[row + i] = left_[row + i + 1] + steps[letters[i]].time;
}

// All that starts before `time` is as it was.
void Walk::begin_at(int64_t time) {
  const size_t kinds = static_cast<size_t>(3 * in_.chunks);
  for (int rank = 0; rank < in_.ranks; ++rank) {
    const size_t row = static_cast<size_t>(rank) * width_;
    Rank& own = ranks_[rank];
    own = {};
    if (time > 0) {
      const auto begin = now_.start.begin() + static_cast<std::ptrdiff_t>(row);
      const auto end = begin + static_cast<std::ptrdiff_t>(lists_[rank].size());
      own.position = static_cast<size_t>(std::lower_bound(begin, end, time) - begin);
      if (own.position > 0) own.free = now_.finish[row + own.position - 1];
    }
    own.left = left_[row + own.position];
    const uint16_t* before = counts_.data() + (row + own.position) * kinds;
    std::copy(before, before + kinds, done_.begin() + static_cast<std::ptrdiff_t>(rank * 3 * in_.chunks));
  }
}

bool Walk::run(int64_t limit) {
  trial_.end = 0;
  queue_.clear();
  for (int rank = in_.ranks - 1; rank >= 0; --rank) queue_.push_back(rank);
  while (!queue_.empty()) {
    const int rank = queue_.back();
    queue_.pop_back();
    if (!run_rank(rank, limit)) return false;
  }
  for (int rank = 0; rank < in_.ranks; ++rank) {
    if (ranks_[rank].position < lists_[rank].size()) return false;  // a circle
    trial_.end = std::max(trial_.end, ranks_[rank].free + in_.tail[rank]);
  }
  return true;
}

// Runs as far as it can; false if the step must end after `limit`.
bool Walk::run_rank(int rank, int64_t limit) {
  Rank own = ranks_[rank];
  own.blocked = none;
  const Letters& letters = lists_[rank];
  const Step* steps = steps_.data() + static_cast<size_t>(rank * passes * in_.chunks);
  int64_t* starts = trial_.start.data() + static_cast<size_t>(rank) * width_;
  int64_t* finishes = trial_.finish.data() + static_cast<size_t>(rank) * width_;
  for (; own.position < letters.size(); ++own.position) {
    const Step& step = steps[letters[own.position]];
    uint16_t& done = done_[step.count];
    int64_t start = own.free;
    if (step.needed >= 0) {
      const auto input = static_cast<size_t>(step.input + done);
      if (done_[step.needed] <= done) {
        own.blocked = input;
        break;
      }
      start = std::max(start, trial_.made[input] + step.latency);
    }
    const int64_t finish = start + step.time;
    if (start + own.left > limit || finish + step.after > limit) return false;
    starts[own.position] = start;
    finishes[own.position] = own.free = finish;
    own.left -= step.time;
    const int microbatch = done++;
    if (step.output < 0) continue;
    ++walked_;
    if (step.other_count >= 0) ++done_[step.other_count];
    const auto output = static_cast<size_t>(step.output + microbatch);
    trial_.made[output] = finish;
    if (step.target < 0 || ranks_[step.target].blocked != output) continue;
    ranks_[step.target].blocked = none;
    queue_.push_back(step.target);
  }
  ranks_[rank] = own;
  return true;
}

Walk::Step Walk::step_of(int rank, Letter letter) const {
  const int chunk = in_.chunk_of(letter);
  const Pass pass = in_.pass_of(letter);
  const int stage = in_.stage_of(rank, chunk);
  const auto count_of = [&](int s, int which) {
    return (in_.rank_of[s] * in_.chunks + in_.chunk[s]) * 3 + which;
  };
  Step step{.time = in_.duration(stage, pass)};
  if (pass == Pass::weight) {
    step.count = count_of(stage, 2);
    return step;
  }
  const int which = pass == Pass::forward ? 0 : 1;
  const int source = which == 0 ? stage - 1 : stage + 1;
  const int target = which == 0 ? stage + 1 : stage - 1;
  step.after = in_.after[stage][which];
  step.count = count_of(stage, which);
  if (pass == Pass::backward) step.other_count = count_of(stage, 2);
  step.output = static_cast<int>(cell(which, stage, 0));
  if (source >= 0 && source < in_.stages) {
    step.needed = count_of(source, which);
    step.input = static_cast<int>(cell(which, source, 0));
    step.latency = in_.latency[which == 0 ? source : stage];
  }
  // Within a rank the list's order is enough.
  if (target >= 0 && target < in_.stages && in_.rank_of[target] != rank) step.target = in_.rank_of[target];
  return step;
}

bool Walk::replace(std::span<Change> changes, int64_t limit) {
  int64_t from = Instance::no_bound;
  for (const Change& change : changes)
    from = std::min(from, now_.start[static_cast<size_t>(change.rank) * width_ + change.first]);
  std::copy(now_.made.begin(), now_.made.end(), trial_.made.begin());
  begin_at(from);
  for (Change& change : changes) {
    const int rank = change.rank;
    std::swap(lists_[rank], change.letters);
    if (lists_[rank].size() != change.letters.size())
      ranks_[rank].left += work(rank, lists_[rank]) - work(rank, change.letters);
  }
  if (!run(limit)) {
    for (Change& change : changes) std::swap(lists_[change.rank], change.letters);
    return false;
  }
  keep_before(from);
  for (const Change& change : changes) {
    const size_t size = lists_[change.rank].size();
    if (size == change.letters.size()) {
      count(change.rank, change.first, change.last);
    } else {
      left_[static_cast<size_t>(change.rank) * width_ + size] = in_.tail[change.rank];
      count(change.rank, 0, size - 1);
    }
  }
  std::swap(now_, trial_);
  critical_known_ = false;
  return true;
}

// Keeps the times of all that was not walked again.
void Walk::keep_before(int64_t time) {
  for (int rank = 0; rank < in_.ranks; ++rank) {
    const size_t begin = static_cast<size_t>(rank) * width_;
    for (size_t i = begin; i < begin + lists_[rank].size() && now_.start[i] < time; ++i) {
      trial_.start[i] = now_.start[i];
      trial_.finish[i] = now_.finish[i];
    }
  }
}

int64_t Walk::work(int rank, const Letters& letters) const {
  int64_t sum = 0;
  for (const Letter letter : letters)
    sum += in_.duration(in_.stage_of(rank, in_.chunk_of(letter)), in_.pass_of(letter));
  return sum;
}

Walk::Place Walk::last() const {
  Place last{0, 0};
  int64_t end = -1;
  for (int rank = 0; rank < in_.ranks; ++rank) {
    const auto position = static_cast<int>(lists_[rank].size()) - 1;
    const int64_t finish = now_.finish[static_cast<size_t>(rank) * width_ + static_cast<size_t>(position)];
    if (finish + in_.tail[rank] > end) end = finish + in_.tail[rank], last = {rank, position};
  }
  return last;
}

const std::vector<Walk::Place>& Walk::critical() {
  if (critical_known_) return critical_;
  critical_known_ = true;
  critical_.clear();
  Place at = last();
  while (at.position >= 0) {
    const size_t place = static_cast<size_t>(at.rank) * width_ + static_cast<size_t>(at.position);
    const int64_t start = now_.start[place];
    if (at.position > 0 && now_.finish[place - 1] == start) {
      critical_.push_back(at);
      --at.position;
      continue;
    }
    if (start == 0) break;
    const Letter letter = lists_[at.rank][static_cast<size_t>(at.position)];
    const bool forward = in_.pass_of(letter) == Pass::forward;
    const int source = in_.stage_of(at.rank, in_.chunk_of(letter)) + (forward ? -1 : 1);
    at = {in_.rank_of[source], position_of(forward ? 0 : 1, source, microbatch_at(at))};
  }
  return critical_;
}

class Annealer {
 public:
  Annealer(const Instance& instance, const Lists& seed, uint64_t random_seed)
      : in_(instance), walk_(instance, seed), random_(random_seed), best_{seed, walk_.end()} {}

  Timed run(int64_t work, int64_t heat) {
    while (walk_.passes_walked() < work && best_.end > in_.least && tried_ < 4 * work) {
      const int64_t left = work - walk_.passes_walked();
      const int64_t warmth = heat * (left >> 10) / ((work >> 10) + 1);
      for (int i = 0; i < 256; ++i) try_one(warmth);
    }
    return std::move(best_);
  }

 private:
  void try_one(int64_t warmth) {
    ++tried_;
    used_ = 0;
    if (!propose()) return;
    const int64_t limit = walk_.end() + (warmth > 0 ? exponential(random_, warmth) : 0);
    if (!walk_.replace({changes_.data(), used_}, limit) || walk_.end() >= best_.end) return;
    best_.lists = walk_.lists();
    best_.end = walk_.end();
  }

  bool propose() {
    const int choice = random_.below(16);
    if (choice < 12) return move_critical(/*earlier=*/choice < 7);
    const int rank = random_.below(in_.ranks);
    letters_ = walk_.lists()[rank];
    const int position = random_.below(static_cast<int>(letters_.size()));
    const bool whole = in_.whole_backward && random_.below(3) == 0;
    const bool moved = whole         ? fuse_or_split(position)
                       : choice < 15 ? shift(position, random_.below(2) == 0 ? distance() : -distance())
                                     : swap_many(position);
    return moved && add_change(rank);
  }

  // The pass here to an earlier place, or the one before it to a later one; often also the passes of the same
  // microbatch that it waits for, or that wait for it, on other ranks.
  bool move_critical(bool earlier) {
    const auto& critical = walk_.critical();
    if (critical.empty()) return false;
    Walk::Place place = critical[static_cast<size_t>(random_.below(static_cast<int>(critical.size())))];
    if (!earlier) --place.position;
    const int by = earlier ? -distance() : distance();
    letters_ = walk_.lists()[place.rank];
    if (!shift(place.position, by) || !add_change(place.rank)) return false;
    if (random_.below(2) == 0) follow(place, by);
    return true;
  }

  void follow(const Walk::Place& place, int by) {
    const Letter letter = walk_.lists()[place.rank][static_cast<size_t>(place.position)];
    if (in_.pass_of(letter) == Pass::weight) return;
    const int which = in_.pass_of(letter) == Pass::forward ? 0 : 1;
    const int microbatch = walk_.microbatch_at(place);
    const int step = (by < 0) == (which == 0) ? -1 : 1;
    int stage = in_.stage_of(place.rank, in_.chunk_of(letter));
    do {
      stage += step;
      if (stage < 0 || stage >= in_.stages) return;
      const int rank = in_.rank_of[stage];
      const std::span<const Walk::Change> others(changes_.data(), used_);
      if (std::ranges::any_of(others, [&](const auto& change) { return change.rank == rank; })) return;
      letters_ = walk_.lists()[rank];
      if (!shift(walk_.position_of(which, stage, microbatch), by) || !add_change(rank)) return;
    } while (random_.below(4) > 0);
  }

  bool add_change(int rank) {
    if (!in_.repair(rank, letters_, first_, last_)) return false;
    if (used_ == changes_.size()) changes_.emplace_back();
    Walk::Change& change = changes_[used_++];
    change.rank = rank;
    change.first = first_;
    change.last = last_;
    std::swap(change.letters, letters_);
    return true;
  }

  int distance() {
    int steps = 1;
    while (steps < 24 && random_.below(5) < 3) ++steps;
    return steps;
  }

  // Moves a letter over `by` others.
  bool shift(int position, int by) {
    const int to = std::clamp(position + by, 0, static_cast<int>(letters_.size()) - 1);
    if (to == position) return false;
    const auto at = letters_.begin() + position;
    if (to < position) {
      if (std::all_of(letters_.begin() + to, at, [&](Letter l) { return l == *at; })) return false;
      std::rotate(letters_.begin() + to, at, at + 1);
    } else {
      std::rotate(at, at + 1, letters_.begin() + to + 1);
    }
    first_ = static_cast<size_t>(std::min(position, to));
    last_ = static_cast<size_t>(std::max(position, to));
    return true;
  }

  // I and W as B, or the other way round.
  bool fuse_or_split(int position) {
    const Letter letter = letters_[position];
    const int chunk = in_.chunk_of(letter);
    const Letter input = in_.letter(Pass::input, chunk);
    const Letter weight = in_.letter(Pass::weight, chunk);
    const auto at = letters_.begin() + position;
    first_ = static_cast<size_t>(position);
    if (in_.pass_of(letter) == Pass::backward) {
      *at = input;
      letters_.insert(at + 1, weight);
      last_ = letters_.size() - 1;
      return true;
    }
    const auto next = std::find(at, letters_.end(), weight);
    if (letter != input || next == letters_.end()) return false;
    letters_.erase(next);
    *at = in_.letter(Pass::backward, chunk);
    last_ = letters_.size() - 1;
    return true;
  }

  // Swaps the two letters here, and some of the same pairs after them: as a steady pattern repeats.
  bool swap_many(int position) {
    const auto size = static_cast<int>(letters_.size());
    if (position + 1 >= size) return false;
    const Letter one = letters_[position];
    const Letter two = letters_[position + 1];
    if (one == two) return false;
    int left = 2 + random_.below(in_.microbatches);
    for (int i = position; i + 1 < size && left > 0; ++i) {
      if (letters_[i] != one || letters_[i + 1] != two) continue;
      std::swap(letters_[i], letters_[i + 1]);
      ++i;
      last_ = static_cast<size_t>(i);
      --left;
    }
    first_ = static_cast<size_t>(position);
    return true;
  }

  const Instance& in_;
  Walk walk_;
  Random random_;
  Timed best_;
  std::vector<Walk::Change> changes_;  // the first used_ of them
  size_t used_ = 0;
  Letters letters_;
  size_t first_ = 0, last_ = 0;  // what is changed of them
  int64_t tried_ = 0;
};

}  // namespace

Timed anneal(const Instance& instance, const Lists& seed, uint64_t random_seed, int64_t work, int64_t heat) {
  return Annealer(instance, seed, random_seed).run(work, heat);
}

}  // namespace pptrain::schedule
