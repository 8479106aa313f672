#include "parallel/checkpoint/retention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>

namespace pptrain::checkpoint {

std::vector<int64_t> best_steps(std::span<const ScoredStep> scored, int64_t n) {
  std::vector<ScoredStep> sorted(scored.begin(), scored.end());
  std::erase_if(sorted, [](const ScoredStep& s) { return std::isnan(s.loss); });
  std::ranges::sort(sorted, {}, [](const ScoredStep& s) { return std::tuple(s.loss, s.step); });
  std::vector<int64_t> steps;
  for (const ScoredStep& s : sorted) {
    if (static_cast<int64_t>(steps.size()) >= n) break;
    steps.push_back(s.step);
  }
  return steps;
}

bool is_among_best(std::span<const ScoredStep> scored, const ScoredStep& candidate, int64_t n) {
  std::vector<ScoredStep> all(scored.begin(), scored.end());
  std::erase_if(all, [&](const ScoredStep& s) { return s.step == candidate.step; });
  all.push_back(candidate);
  return std::ranges::count(best_steps(all, n), candidate.step) > 0;
}

std::set<int64_t> kept_steps(std::span<const int64_t> there, int64_t saved, const Retention& retention,
                             std::span<const ScoredStep> scored) {
  if (retention.keep_last_n <= 0) return {there.begin(), there.end()};
  std::set<int64_t> kept;
  std::vector<int64_t> newest(there.begin(), there.end());
  std::ranges::sort(newest, std::greater{});
  int64_t count = 1;  // the one just saved, whatever lies beside it
  for (const int64_t step : newest) {
    if (step == saved || count++ < retention.keep_last_n) kept.insert(step);
  }
  std::vector<ScoredStep> present(scored.begin(), scored.end());
  std::erase_if(present,
                [&](const ScoredStep& s) { return std::ranges::find(there, s.step) == there.end(); });
  for (const int64_t step : best_steps(present, retention.keep_best_n)) kept.insert(step);
  return kept;
}

}  // namespace pptrain::checkpoint
