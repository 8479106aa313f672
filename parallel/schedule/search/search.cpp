#include "parallel/schedule/search/search.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/threads.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/search/instance.h"

namespace pptrain::schedule {
namespace {

constexpr int chains = 8;  // whatever the number of threads
// Stages x microbatches: of larger steps moves change too little, and patterns take most of the time.
constexpr size_t large = 1 << 13;

// A list as it would run, if it fits.
struct Finalist {
  Schedule lowered;
  double step_time = 0;
};

class Search {
 public:
  Search(const SearchProblem& problem, int percent, int threads)
      : problem_(problem),
        threads_(static_cast<size_t>(std::max(0, threads))),
        large_(problem.shape.cells() > large),
        work_(usual_work() * percent / 100) {}

  SearchResult run() {
    try_named();
    if (!problem_.start.actions.empty()) {
      consider(problem_.start);
      known_.push_back(problem_.start);
    }
    try {
      if (!best_ || problem_.shape.ranks > 1) search();
    } catch (const UsageError&) {
      if (!best_) throw;
    }
    if (!best_) throw UsageError("search: no order was found that fits into the memory of every rank");
    SearchResult result{.compute = compute_only(best_->lowered),
                        .lowered = std::move(best_->lowered),
                        .step_time = best_->step_time,
                        .named = named_,
                        .named_time = named_time_};
    result.compute.name = result.lowered.name = "search";
    return result;
  }

 private:
  // Passes of F and I to simulate: some 10 s on two cores.
  int64_t usual_work() const {
    return large_ ? 600'000'000
                  : std::min<int64_t>(300'000'000, 1'200'000 * static_cast<int64_t>(problem_.shape.cells()));
  }

  void search() {
    Instance instance = with_reserve();
    std::vector<Timed> seeds = by_patterns(instance);
    for (const Schedule& known : known_) {
      if (std::optional<Lists> lists = instance.lists_of(known))
        seeds.push_back(simulated(instance, *std::move(lists)));
    }
    sort(seeds);
    constexpr int64_t work_of_a_chain =
        25'000'000;  // fewer and longer chains find less, and more and shorter
    const auto number = static_cast<int>(std::clamp<int64_t>(work_ / work_of_a_chain, 2, chains));
    const int64_t work = large_ ? work_ / 10 : work_;
    std::vector<Timed> found = annealed(instance, seeds, number, work * 7 / 10, 40);
    found.insert(found.end(), seeds.begin(), seeds.end());
    sort(found);
    std::vector<Timed> better = annealed(instance, found, std::max(1, number / 4), work * 3 / 10, 30);
    found.insert(found.end(), better.begin(), better.end());
    sort(found);
    constexpr size_t most = 6;
    for (size_t i = 0; i < std::min(most, found.size()); ++i) consider(instance, std::move(found[i].lists));
  }

  static void sort(std::vector<Timed>& found) {
    std::ranges::stable_sort(found, {}, [](const Timed& one) { return one.end; });
    const auto same = std::ranges::unique(found, {}, &Timed::lists);
    found.erase(same.begin(), same.end());
  }

  static Timed simulated(const Instance& instance, Lists lists) {
    return anneal(instance, lists, /*random_seed=*/0, /*work=*/0, /*heat=*/0);
  }

  void try_named() {
    ScheduleSpec spec = spec_of(problem_.shape);
    for (const std::string& name : training_schedule_names()) {
      Schedule named;
      spec.name = name;
      try {
        named = make_schedule(spec);
      } catch (const UsageError&) {
        continue;
      }
      if (named.stages_per_rank > 1 && named.placement != problem_.shape.placement) continue;
      named.placement = problem_.shape.placement;
      const double before = best_ ? best_->step_time : 0;
      if (consider(named).empty() && (named_.empty() || best_->step_time < before)) {
        named_ = name;
        named_time_ = best_->step_time;
      }
      known_.push_back(std::move(named));
    }
  }

  // Says by how much it does not fit. If it fits and is the fastest so far, it stays.
  std::vector<int64_t> consider(const Schedule& compute) {
    Finalist one{.lowered = lower(compute, problem_.shard)};
    std::vector<int64_t> over = excess(one.lowered);
    if (!over.empty()) return over;
    one.step_time = problem_.post_validated ? post_validated_step_time(one.lowered, problem_.costs)
                                            : simulate(one.lowered, problem_.costs).step_time;
    if (!best_ || one.step_time < best_->step_time) best_ = std::move(one);
    return {};
  }

  // If its messages take more than the reserve, W's go ahead of what then has no room.
  void consider(Instance instance, Lists lists) {
    constexpr int most_attempts = 4;
    for (int attempt = 0; attempt < most_attempts; ++attempt) {
      const std::vector<int64_t> over = consider(instance.schedule_of(lists));
      if (over.empty()) return;
      for (int rank = 0; rank < instance.ranks; ++rank) {
        instance.room[rank] -= over[rank];
        if (over[rank] > 0 && !instance.repair(rank, lists[rank])) return;
      }
    }
  }

  // [rank] bytes that it takes beyond the room; none if it fits.
  std::vector<int64_t> excess(const Schedule& lowered) const {
    if (problem_.room.empty()) return {};
    std::vector<int64_t> over;
    const std::vector<MemorySplit> peaks = peak_bytes(lowered, problem_.bytes);
    for (size_t rank = 0; rank < peaks.size(); ++rank)
      over.push_back(std::max<int64_t>(0, peaks[rank].total() - problem_.room[rank]));
    if (std::ranges::max(over) == 0) over.clear();
    return over;
  }

  // Room without what messages and whole stages take in a lowered list.
  Instance with_reserve() const {
    Instance instance(problem_);
    if (problem_.room.empty()) return instance;
    const Schedule compute = instance.schedule_of(best_pattern(instance, 1, 1).lists);
    const std::vector<MemorySplit> with = peak_bytes(lower(compute, problem_.shard), problem_.bytes);
    const std::vector<MemorySplit> without = peak_bytes(compute, problem_.bytes);
    for (int rank = 0; rank < instance.ranks; ++rank)
      instance.room[rank] -= std::max<int64_t>(0, with[rank].total() - without[rank].total());
    return instance;
  }

  std::vector<Timed> by_patterns(const Instance& instance) const {
    std::vector<Timed> best(chains);
    const int64_t passes_of_one = 4 * static_cast<int64_t>(problem_.shape.cells());
    const int64_t work = large_ ? work_ / 4 : work_ / 8;
    // A pass is looked for among all chunks of its rank.
    constexpr int64_t most_work_of_a_chain = 10'000'000;
    const int64_t least =
        std::clamp<int64_t>(most_work_of_a_chain / (passes_of_one * problem_.shape.stages_per_rank), 1, 16);
    const auto tries = static_cast<int>(std::clamp<int64_t>(work / passes_of_one / chains, least, 4000));
    const auto one = [&](size_t chain) { best[chain] = best_pattern(instance, chain + 1, tries); };
    for_each_in_parallel(chains, one, threads_);
    return best;
  }

  std::vector<Timed> annealed(const Instance& instance, const std::vector<Timed>& seeds, int number,
                              int64_t work, int64_t percent) const {
    std::vector<Timed> found(static_cast<size_t>(number));
    const int64_t pass = instance.busiest / (3 * instance.microbatches * instance.chunks);
    const auto one = [&](size_t chain) {
      const Timed& seed = seeds[chain * std::min<size_t>(seeds.size(), number) / number];
      found[chain] = anneal(instance, seed.lists, static_cast<uint64_t>(100 * percent) + chain, work / number,
                            pass * percent / 100);
    };
    for_each_in_parallel(found.size(), one, threads_);
    return found;
  }

  const SearchProblem& problem_;
  size_t threads_;  // 0: those of the machine
  bool large_;
  int64_t work_;
  std::vector<Schedule> known_;  // compute actions to begin with
  std::optional<Finalist> best_;
  std::string named_;
  double named_time_ = 0;
};

}  // namespace

double least_step_time(const SearchProblem& problem) {
  constexpr double rounding = 1e-6;  // of times to ticks, at most
  const Instance instance(problem);
  return static_cast<double>(instance.least) * instance.tick * (1 - rounding);
}

SearchResult search_schedule(const SearchProblem& problem, int percent, int threads) {
  return Search(problem, percent, threads).run();
}

}  // namespace pptrain::schedule
