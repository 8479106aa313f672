#include "parallel/schedule/search/search.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/for_each_in_parallel.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/search/instance.h"

namespace pptrain::schedule {
namespace {

constexpr int chains = 8;  // whatever the number of threads

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
        work_(usual_work(problem.shape) * percent / 100) {}

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
  // Passes of F and I to simulate: some 10 s on two cores, 30 s for the largest steps.
  static int64_t usual_work(const Schedule& shape) {
    const auto cells = static_cast<int64_t>(shape.cells());
    constexpr int64_t large = 1 << 14;
    return cells > large ? 1'000'000'000 : std::min<int64_t>(300'000'000, 1'200'000 * cells);
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
    std::vector<Timed> found = annealed(instance, seeds, number, work_ * 7 / 10, 40);
    found.insert(found.end(), seeds.begin(), seeds.end());
    sort(found);
    std::vector<Timed> better = annealed(instance, found, std::max(1, number / 4), work_ * 3 / 10, 30);
    found.insert(found.end(), better.begin(), better.end());
    sort(found);
    constexpr size_t most = 6;
    for (size_t i = 0; i < std::min(most, found.size()); ++i) consider(instance.schedule_of(found[i].lists));
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
    for (const std::string& name : training_schedule_names()) {
      Schedule named;
      try {
        named = make_schedule({.name = name,
                               .ranks = problem_.shape.ranks,
                               .microbatches = problem_.shape.microbatches,
                               .stages_per_rank = problem_.shape.stages_per_rank});
      } catch (const UsageError&) {
        continue;
      }
      if (named.stages_per_rank > 1 && named.placement != problem_.shape.placement) continue;
      named.placement = problem_.shape.placement;
      const double before = best_ ? best_->step_time : 0;
      if (consider(named) && (named_.empty() || best_->step_time < before)) {
        named_ = name;
        named_time_ = best_->step_time;
      }
      known_.push_back(std::move(named));
    }
  }

  // Does it fit? The fastest stays.
  bool consider(const Schedule& compute) {
    Finalist one{.lowered = lower(compute, problem_.shard)};
    if (!problem_.room.empty()) {
      const std::vector<MemorySplit> peaks = peak_bytes(one.lowered, problem_.bytes);
      for (size_t rank = 0; rank < peaks.size(); ++rank) {
        if (peaks[rank].total() > problem_.room[rank]) return false;
      }
    }
    one.step_time = problem_.post_validated ? post_validated_step_time(one.lowered, problem_.costs)
                                            : simulate(one.lowered, problem_.costs).step_time;
    if (!best_ || one.step_time < best_->step_time) best_ = std::move(one);
    return true;
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
    const auto tries = static_cast<int>(std::clamp<int64_t>(work_ / 8 / passes_of_one / chains, 16, 4000));
    for_each_in_parallel(
        chains, [&](size_t chain) { best[chain] = best_pattern(instance, chain + 1, tries); }, threads_);
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
  int64_t work_;
  std::vector<Schedule> known_;  // compute actions to begin with
  std::optional<Finalist> best_;
  std::string named_;
  double named_time_ = 0;
};

}  // namespace

SearchResult search_schedule(const SearchProblem& problem, int percent, int threads) {
  return Search(problem, percent, threads).run();
}

}  // namespace pptrain::schedule
