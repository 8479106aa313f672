#include "app/run/pace.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "app/forecast/costs.h"
#include "app/forecast/prediction.h"
#include "core/base/error.h"
#include "core/base/timing.h"
#include "core/io/atomic_file.h"
#include "core/io/files.h"
#include "parallel/schedule/render/text_layout.h"

namespace pptrain::app {

namespace {

constexpr int64_t warming_steps = 3;      // they touch memory and open links for the first time
constexpr size_t block_steps = 10;        // at least,
constexpr double block_seconds = 2;       // and so long
constexpr double slow_from = 1.10;        // of the reference's step time
constexpr double slow_until = 1.05;       // smaller, so that a run at the limit does not change all the time
constexpr int64_t longer_pause = 4;       // times, from one change to the next
constexpr int64_t longest_pause = 64;     // blocks
constexpr size_t most_slow = 50;          // kept of a run
constexpr size_t longest_pace = 1 << 20;  // bytes of pace.json

// Places in RankShares.
enum class Share : uint8_t { forward, backward, weight_gradients, other_work, transfers, own };

constexpr size_t place(Share share) {
  return static_cast<size_t>(share);
}

Share share_of(schedule::ActionKind kind) {
  switch (kind) {
    case schedule::ActionKind::forward:
      return Share::forward;
    case schedule::ActionKind::backward:
    case schedule::ActionKind::backward_input:
      return Share::backward;
    case schedule::ActionKind::backward_weight:
      return Share::weight_gradients;
    default:
      return Share::other_work;
  }
}

const char* name_of(Share share) {
  constexpr std::array names = {"forward", "backward", "weight gradients", "data and optimizer"};
  return names.at(place(share));
}

// On a GPU some steps of a block may be traced, and the others have no ranks.
void add(StepPace& sum, const StepPace& step) {
  sum.seconds += step.seconds;
  sum.ranks.resize(std::min(sum.ranks.size(), step.ranks.size()));
  for (size_t rank = 0; rank < sum.ranks.size(); ++rank)
    for (size_t share = 0; share < sum.ranks[rank].size(); ++share)
      sum.ranks[rank][share] += step.ranks[rank][share];
}

StepPace mean_of(StepPace sum, size_t count) {
  sum.seconds /= static_cast<double>(count);
  for (RankShares& shares : sum.ranks)
    for (double& share : shares) share /= static_cast<double>(count);
  return sum;
}

// Of forward, backward, weight gradients and other work.
double sum_of_work(const RankShares& shares) {
  return std::accumulate(shares.begin(), shares.begin() + place(Share::transfers), 0.0);
}

StepPace planned(const Plan& plan, const CostSource& source) {
  const CostModel costs(plan, source);
  const Prediction p = predict(plan, costs);
  StepPace pace{.seconds = p.step_time, .ranks = {}};
  for (size_t rank = 0; rank < p.optimizer_time.size(); ++rank) {
    RankShares shares{};
    for (const schedule::Action& action : schedule::timed_actions(plan.compute.actions[rank]))
      shares[place(share_of(action.kind))] +=
          schedule::cost_of(p.costs, plan.compute, action).time.of(action.kind);
    if (costs.load() > 1) {  // passes take longer while other ranks use the cores
      const double longer = p.pipeline.ranks[rank].busy / sum_of_work(shares);
      for (double& share : shares) share *= longer;
    }
    shares[place(Share::other_work)] += p.optimizer_time[rank] + costs.overhead();
    shares[place(Share::transfers)] = p.pipeline.ranks[rank].wait_for_transfer;
    shares[place(Share::own)] = sum_of_work(shares);
    // A stage's ranks are neighbours, and all do the same work.
    pace.ranks.insert(pace.ranks.end(), static_cast<size_t>(plan.mesh.world_size() / plan.mesh.pp), shares);
  }
  return pace;
}

// The shares of a rank's work that have grown most: "forward +40 %, backward +38 %".
std::string describe_growth(const RankShares& measured, const RankShares& expected) {
  RankShares growth{};
  for (size_t share = 0; share < place(Share::transfers); ++share)
    growth[share] = std::max(0.0, measured[share] - expected[share]);
  std::string text;
  for (size_t share = 0; share < place(Share::transfers); ++share) {
    if (growth[share] == 0 || growth[share] < sum_of_work(growth) / 4) continue;
    const std::string by = expected[share] > 0
                               ? fmt::format("{:.0f} %", 100 * growth[share] / expected[share])
                               : schedule::format_seconds(growth[share]);
    text += fmt::format("{}{} +{}", text.empty() ? "" : ", ", name_of(static_cast<Share>(share)), by);
  }
  return text.empty() ? "work between passes" : text;
}

// "12 %", or "30 times" if modelled costs are far off.
std::string how_much(double factor) {
  return factor < 10 ? fmt::format("{:.0f} %", 100 * (factor - 1)) : fmt::format("{:.0f} times", factor);
}

}  // namespace

bool is_slow(const PaceRecord& record) {
  return !record.slow.empty() && !record.slow.back().last;
}

std::vector<RankShares> rank_shares(const schedule::Schedule& schedule,
                                    std::span<const schedule::RankStep> steps,
                                    std::span<const schedule::RankTime> times) {
  std::vector<RankShares> ranks(steps.size());
  for (size_t rank = 0; rank < steps.size(); ++rank) {
    const std::vector<schedule::Action> actions = schedule::timed_actions(schedule.actions[rank]);
    for (size_t i = 0; i < actions.size(); ++i) {
      const schedule::Span& span = steps[rank].actions[i];
      ranks[rank][place(share_of(actions[i].kind))] += span.end - span.start;
    }
    for (const schedule::Span& span : steps[rank].work)
      ranks[rank][place(Share::other_work)] += span.end - span.start;
    ranks[rank][place(Share::transfers)] = times[rank].wait_for_transfer;
    const schedule::Span& step = steps[rank].step;
    ranks[rank][place(Share::own)] =
        steps[rank].waited ? step.end - step.start - *steps[rank].waited : sum_of_work(ranks[rank]);
  }
  return ranks;
}

Pace::Pace(const Plan& plan, const CoreSharing& sharing)
    : pipeline_alone_(plan.mesh.world_size() == plan.mesh.pp) {
  const std::string& costs = plan.job.distributed.pp_costs;
  const bool measured = costs.ends_with(".json");
  try {
    const CostSource source =
        on_cores(make_cost_source(plan, costs), plan.mesh.world_size(), plan.job.run.threads, sharing);
    plan_ = planned(plan, source);
    record_ = {.planned = plan_.seconds, .costs = source.description};
  } catch (const Error&) {  // such as a missing trace: there is no plan to compare with
    return;
  }
  if (!measured) return;
  reference_ = plan_;
  record_.reference = plan_.seconds;
}

std::string Pace::take(int64_t step, const StepPace& measured) {
  if (++seen_ <= warming_steps) return "";
  if (times_.empty()) {
    sum_ = measured;
  } else {
    add(sum_, measured);
  }
  times_.push_back(measured.seconds);
  if (times_.size() < block_steps || sum_.seconds < block_seconds) return "";
  std::string line = judge(step);
  times_.clear();
  return line;
}

// Judges by the median, so that a spike is no slowness. The reason comes from means, which add up while
// medians do not: an irregular slowness is in one share of this step and in another one of the next.
std::string Pace::judge(int64_t last) {
  const StepPace mean = mean_of(sum_, times_.size());
  const double time = median(times_);
  const int64_t first = last + 1 - std::ssize(times_);
  const bool first_block = !std::exchange(judged_, true);
  if (record_.reference == 0) {
    reference_ = mean;
    record_.first = first;
    record_.last = last;
    record_.reference = time;
  }
  const double factor = time / record_.reference;
  ++blocks_;
  if (!is_slow(record_) && factor > slow_from && may_change()) {
    record_.slow.push_back({.first = first, .last = {}, .factor = factor, .why = why(mean, reference_)});
    if (record_.slow.size() > most_slow) record_.slow.erase(record_.slow.begin());
    return fmt::format("steps {} to {}: {} slower than {}: {}", first, last, how_much(factor),
                       record_.compared_with(), record_.slow.back().why);
  }
  if (first_block) return first_line(mean, time, first, last);
  if (!is_slow(record_) || factor > slow_until || !may_change()) return "";
  record_.slow.back().last = first - 1;
  return fmt::format("steps {} to {}: no longer slower than {}", first, last, record_.compared_with());
}

// The first change counts at once. If changes follow each other, e.g. because of other programs, they are
// reported ever more rarely. After a calm time all is as at first.
bool Pace::may_change() {
  const int64_t since = blocks_ - changed_;
  if (since < pause_) return false;
  pause_ = since > longer_pause * pause_ ? 1 : std::min(longer_pause * pause_, longest_pause);
  changed_ = blocks_;
  return true;
}

std::string Pace::first_line(const StepPace& mean, double time, int64_t first, int64_t last) const {
  std::string line = fmt::format("steps {} to {}: {} a step", first, last, schedule::format_seconds(time));
  if (plan_.seconds == 0) return line;
  const double factor = time / plan_.seconds;
  if (factor > slow_from) line += fmt::format(", {} slower than planned", how_much(factor));
  line += fmt::format("; the plan was {}, {}", schedule::format_seconds(plan_.seconds), record_.costs);
  if (factor > slow_from) line += fmt::format("; {}", why(mean, plan_));
  return line;
}

// The part of the step that lost time. A rank's own time comes first: if other ranks wait, that follows from
// it.
std::string Pace::why(const StepPace& measured, const StepPace& expected) const {
  if (measured.ranks.size() != expected.ranks.size() || measured.ranks.empty())
    return "passes are timed in traced steps alone (profile.trace)";
  const double worth_naming = (measured.seconds - expected.seconds) / 4;
  const auto growth = [&](size_t rank, Share share) {
    return measured.ranks[rank][place(share)] - expected.ranks[rank][place(share)];
  };
  size_t slowest = 0, latest = 0;  // by own time, and by waiting for transfers
  for (size_t rank = 0; rank < measured.ranks.size(); ++rank) {
    if (growth(rank, Share::own) > growth(slowest, Share::own)) slowest = rank;
    if (growth(rank, Share::transfers) > growth(latest, Share::transfers)) latest = rank;
  }
  if (growth(slowest, Share::own) >= worth_naming)
    return fmt::format("rank {}'s {}", slowest,
                       describe_growth(measured.ranks[slowest], expected.ranks[slowest]));
  if (growth(latest, Share::transfers) >= worth_naming)
    return fmt::format("rank {} waits {} longer for transfers", latest,
                       schedule::format_seconds(growth(latest, Share::transfers)));
  return pipeline_alone_ ? "exchanges at the end of the step" : "exchanges between ranks of a stage";
}

std::string PaceRecord::compared_with() const {
  return first == 0 ? "planned" : fmt::format("steps {} to {}", first, last);
}

std::string describe(const Slowness& slow, const PaceRecord& record) {
  const std::string when = slow.last ? fmt::format("steps {} to {} were", slow.first, *slow.last)
                                     : fmt::format("since step {}", slow.first);
  return fmt::format("{} {} slower than {}: {}", when, how_much(slow.factor), record.compared_with(),
                     slow.why);
}

std::string describe_pace(const PaceRecord& record) {
  if (is_slow(record)) return describe(record.slow.back(), record);
  const std::string plan =
      record.planned > 0 && record.first > 0
          ? fmt::format("; the plan was {}, {}", schedule::format_seconds(record.planned), record.costs)
          : "";
  return fmt::format("as {} ({} a step{})", record.compared_with(),
                     schedule::format_seconds(record.reference), plan);
}

std::optional<PaceRecord> read_pace(const std::filesystem::path& run_dir) {
  try {
    const auto json = nlohmann::json::parse(io::read_small_file(run_dir / pace_name, longest_pace));
    PaceRecord record{.planned = json.at("planned_s").get<double>(),
                      .costs = json.at("costs").get<std::string>(),
                      .first = json.at("first").get<int64_t>(),
                      .last = json.at("last").get<int64_t>(),
                      .reference = json.at("reference_s").get<double>(),
                      .slow = {}};
    for (const auto& slow : json.at("slow")) {
      record.slow.push_back({.first = slow.at("first").get<int64_t>(),
                             .last = {},
                             .factor = slow.at("factor").get<double>(),
                             .why = slow.at("why").get<std::string>()});
      if (slow.contains("last")) record.slow.back().last = slow.at("last").get<int64_t>();
    }
    return record;
  } catch (const std::exception&) {  // it is not there, or not written by us
    return std::nullopt;
  }
}

void write_pace(const std::filesystem::path& run_dir, const PaceRecord& record) {
  nlohmann::ordered_json json{{"planned_s", record.planned},     {"costs", record.costs},
                              {"first", record.first},           {"last", record.last},
                              {"reference_s", record.reference}, {"slow", nlohmann::ordered_json::array()}};
  for (const Slowness& slow : record.slow) {
    json["slow"].push_back({{"first", slow.first}, {"factor", slow.factor}, {"why", slow.why}});
    if (slow.last) json["slow"].back()["last"] = *slow.last;
  }
  io::write_file_atomically(run_dir / pace_name,
                            json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace pptrain::app
