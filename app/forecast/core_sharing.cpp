#include "app/forecast/core_sharing.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "parallel/schedule/action.h"
#include "parallel/schedule/cost/idle_split.h"

namespace pptrain::app {
namespace {

using schedule::Span;

// Threads that compute in each set of ranks, as pipeline ranks begin and end passes.
class Loads {
 public:
  Loads(const mesh::MeshShape& mesh, int64_t threads, const CoreSharing& sharing)
      : per_set_(sharing.ranks_per_set > 0 ? sharing.ranks_per_set : mesh.world_size()),
        stride_(mesh.world_size() / mesh.pp),
        per_rank_(static_cast<double>(threads) / sharing.cores),
        loads_(static_cast<size_t>((mesh.world_size() + per_set_ - 1) / per_set_)) {}

  // All ranks of the pipeline rank's stages begin a pass, or end one (-1).
  void add(int rank, int sign) {
    for (int first = rank * stride_; first < (rank + 1) * stride_;) {
      const int set = first / per_set_;
      const int end = std::min((rank + 1) * stride_, (set + 1) * per_set_);
      loads_[static_cast<size_t>(set)] += sign * (end - first) * per_rank_;
      first = end;
    }
  }
  double most() const { return std::max(1.0, std::ranges::max(loads_)); }

 private:
  int per_set_, stride_;
  double per_rank_;
  std::vector<double> loads_;  // [set] threads for each core
};

// The moments of a simulation on the clock of shared cores.
class SharedClock {
 public:
  SharedClock(const schedule::Schedule& schedule, const schedule::Simulation& alone, Loads loads) {
    std::vector<Event> events;
    for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
      for (size_t i = 0; i < schedule.actions[rank].size(); ++i) {
        const Span& span = alone.spans[rank][i];
        if (!schedule::is_compute(schedule.actions[rank][i].kind) || span.end <= span.start) continue;
        events.push_back({span.start, static_cast<int>(rank), 1});
        events.push_back({span.end, static_cast<int>(rank), -1});
      }
    }
    std::ranges::sort(events, {}, [](const Event& event) { return std::pair(event.moment, event.sign); });
    double factor = 1;
    for (const Event& event : events) {
      const auto& [moment, shared] = knots_.back();
      if (event.moment > moment) knots_.emplace_back(event.moment, shared + factor * (event.moment - moment));
      loads.add(event.rank, event.sign);
      factor = loads.most();
    }
  }

  double at(double moment) const {
    const auto after = std::ranges::upper_bound(knots_, moment, {}, &std::pair<double, double>::first);
    const auto& [from, shared_from] = *std::prev(after);
    if (after == knots_.end()) return shared_from + (moment - from);
    return shared_from + (moment - from) * (after->second - shared_from) / (after->first - from);
  }
  Span at(const Span& span) const { return {at(span.start), at(span.end)}; }

 private:
  struct Event {
    double moment;
    int rank, sign;
  };
  std::vector<std::pair<double, double>> knots_{{0, 0}};  // simulated moment, shared one; ascending
};

double ratio(double now, double before) {
  return before > 0 ? now / before : 1;
}

// Computes a rank's times from its spans on the shared clock. A time that is part of another one keeps its
// fraction of it.
schedule::RankTime rank_time(const schedule::Schedule& schedule, const std::vector<schedule::Action>& list,
                             const std::vector<Span>& spans, double step, const schedule::RankTime& alone) {
  schedule::IdleSplit idle(schedule.forward_only);
  for (size_t i = 0; i < list.size(); ++i) {
    if (!schedule::is_compute(list[i].kind)) continue;
    schedule::for_each_part(list[i], [&](const schedule::Action& part) { idle.see(part, spans[i]); });
  }
  schedule::RankTime time;
  double free = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!schedule::is_compute(list[i].kind)) continue;
    idle.add(free, spans[i].start, time);
    time.busy += spans[i].end - spans[i].start;
    free = spans[i].end;
  }
  idle.add(free, step, time);
  time.wait_for_transfer = alone.wait_for_transfer * ratio(time.fill + time.steady + time.drain,
                                                           alone.fill + alone.steady + alone.drain);
  time.wait_for_exchange = alone.wait_for_exchange * ratio(time.busy, alone.busy);
  time.reducing = alone.reducing * ratio(time.barrier, alone.barrier);
  return time;
}

}  // namespace

double CoreSharing::load(int world, int64_t threads) const {
  return cores > 0 ? std::max(1.0, static_cast<double>(ranks(world) * threads) / cores) : 1;
}

schedule::Simulation on_shared_cores(const schedule::Schedule& schedule, schedule::Simulation alone,
                                     const mesh::MeshShape& mesh, int64_t threads,
                                     const CoreSharing& sharing) {
  if (sharing.load(mesh.world_size(), threads) <= 1) return alone;
  const SharedClock clock(schedule, alone, {mesh, threads, sharing});
  for (auto& spans : alone.spans)
    for (Span& span : spans) span = clock.at(span);
  for (double& end : alone.ends) end = clock.at(end);
  alone.step_time = clock.at(alone.step_time);
  for (size_t rank = 0; rank < alone.ranks.size(); ++rank)
    alone.ranks[rank] =
        rank_time(schedule, schedule.actions[rank], alone.spans[rank], alone.step_time, alone.ranks[rank]);
  return alone;
}

}  // namespace pptrain::app
