#include "parallel/schedule/cost/simulate.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "parallel/schedule/cost/idle_split.h"
#include "parallel/schedule/inputs.h"
#include "parallel/schedule/proof/replay.h"
#include "parallel/schedule/proof/speculation.h"

namespace pptrain::schedule {
namespace {

// When a rank's gathers of weights and reductions of gradients begin and end, and how long its passes wait
// for them. A stage's parameters are exchanged in groups (blocks, embedding, head), in order of use. A pass
// waits before each group for that group alone. So it ends no sooner than all of it after the first group is
// there, and one group's part of it after the last one is. Groups are equal parts of the exchange and of a
// pass, unless ExchangeCost says otherwise of the ends. A rank has one channel for gathers and one for
// reductions; each serves one request after the other.
class ExchangeClock {
 public:
  // `costs`: one per stage.
  ExchangeClock(const Schedule& schedule, std::vector<ExchangeCost> costs, bool streamed)
      : costs_(std::move(costs)),
        streamed_(streamed),
        stages_(static_cast<size_t>(schedule.stages())),
        channels_(static_cast<size_t>(schedule.ranks)) {}

  // UNSHARD at `now`: when the channel serves it; streamed: its first group, as the passes gather the others.
  Span unshard(int rank, int stage, double now);
  // REDUCE_GRAD at `now`: when the channel serves it. Right after the B or W it began during that pass, with
  // the first group whose gradients were there.
  Span reduce(int rank, int stage, double now);

  // The end of an F, B, I or W that begins at `start` and takes `time` if it waits for nothing.
  double end_of_pass(int rank, const Action& part, double start, double time);

  // When the rank's last reduction so far ends.
  double reduced(int rank) const { return channels_[rank].reduce; }

 private:
  struct Arrival {  // of the first and of the last group
    double first = 0;
    double last = 0;
  };
  struct Stage {
    bool unsharded = false;
    bool fresh = false;    // since UNSHARD, no pass has run
    bool forward = false;  // the last pass was one
    Arrival weights;
    Arrival buffers;  // when the gradients' buffers are free again
  };
  struct Channels {
    double gather = 0;  // free from then on
    double reduce = 0;
    int last_stage = -1;  // of the rank's last compute action, if it was a B or W
    Span last_pass;
  };

  static double part_of(const ExchangeCost& cost, double given) {
    return given >= 0 ? given : 1.0 / cost.groups;
  }
  void stream(int rank, const Action& part, double start);
  // The channel's next `time`, from `at` on at the earliest.
  static Span use(double& channel, double at, double time);

  std::vector<ExchangeCost> costs_;  // [stage]
  bool streamed_;
  std::vector<Stage> stages_;       // [stage]
  std::vector<Channels> channels_;  // [rank]
};

Span ExchangeClock::use(double& channel, double at, double time) {
  const double start = std::max(channel, at);
  channel = start + time;
  return {start, channel};
}

Span ExchangeClock::unshard(int rank, int stage, double now) {
  const ExchangeCost& cost = costs_[stage];
  const double group = cost.gather * part_of(cost, cost.first_gather);
  const Span span = use(channels_[rank].gather, now, streamed_ ? group : cost.gather);
  stages_[stage].unsharded = stages_[stage].fresh = true;
  stages_[stage].weights = {span.start + group, span.end};
  return span;
}

// The stage's other groups are gathered while the pass runs, and the first too if it is not there: a pass
// ends with the group that the next pass in the other direction begins with, and no other.
void ExchangeClock::stream(int rank, const Action& part, double start) {
  Stage& stage = stages_[part.stage];
  const ExchangeCost& cost = costs_[part.stage];
  const bool forward = part.kind == ActionKind::forward;
  const double group = cost.gather * part_of(cost, forward ? cost.first_gather : -1);
  double& channel = channels_[rank].gather;
  if (!stage.fresh) stage.weights.first = stage.forward == forward ? use(channel, start, group).end : start;
  stage.fresh = false;
  stage.forward = forward;
  stage.weights.last = cost.groups == 1
                           ? stage.weights.first
                           : use(channel, std::max(start, stage.weights.first), cost.gather - group).end;
}

double ExchangeClock::end_of_pass(int rank, const Action& part, double start, double time) {
  Stage& stage = stages_[part.stage];
  double end = start + time;
  const ExchangeCost& cost = costs_[part.stage];
  const auto wait = [&](const Arrival& groups, double in_last) {
    end = std::max({end, groups.first + time, groups.last + time * part_of(cost, in_last)});
  };
  if (stage.unsharded && needs_weights(part.kind)) {
    if (streamed_) stream(rank, part, start);
    wait(stage.weights, part.kind == ActionKind::forward ? cost.last_time : -1);
  }
  channels_[rank].last_stage = -1;
  if (!is_weight_gradient(part.kind)) return end;
  wait(stage.buffers, -1);
  channels_[rank].last_stage = part.stage;
  channels_[rank].last_pass = {start, end};
  return end;
}

Span ExchangeClock::reduce(int rank, int stage, double now) {
  const ExchangeCost& cost = costs_[stage];
  Channels& channels = channels_[rank];
  const double group = cost.reduce / cost.groups;
  double begin = now;
  if (channels.last_stage == stage) {
    const Span& pass = channels.last_pass;
    begin = pass.start + (pass.end - pass.start) / cost.groups;
  }
  Span span = use(channels.reduce, begin, cost.reduce);
  // The last group's gradients are there at `now`.
  channels.reduce = span.end = std::max(span.end, now + cost.reduce * part_of(cost, cost.last_reduce));
  stages_[stage].buffers = {span.start + group, span.end};
  return span;
}

template <typename T>
std::vector<T> expanded(std::vector<T> given, size_t size, T fallback, const char* what) {
  if (given.empty()) given.push_back(std::move(fallback));
  if (given.size() == 1) given.resize(size, given.front());
  if (given.size() != size) {
    throw Error(fmt::format("simulate: {} {} for {}", given.size(), what, size));
  }
  return given;
}

// The begin of a step. Default: all ranks at time 0, and nothing to wait for.
struct Start {
  std::vector<double> free = {};  // [rank] when it can begin; none: 0
  std::vector<size_t> gate = {};  // [rank] place in its list that is not passed before `open`; none: no gate
  double open = 0;
};

class Simulator {
 public:
  Simulator(const Schedule& schedule, const Costs& costs, const Start& start)
      : s_(schedule),
        start_(start),
        inputs_(schedule),
        messages_(schedule.has_communication()),
        costs_(expanded(costs.stages, static_cast<size_t>(schedule.stages()), StageCost{}, "stage costs")),
        latency_(expanded(costs.latency, static_cast<size_t>(std::max(schedule.stages() - 1, 1)), 0.0,
                          "latencies")),
        head_latency_(costs.head_latency),
        cells_(costs.cells),
        ends_(schedule),
        posted_(schedule),
        free_(expanded(start.free, static_cast<size_t>(schedule.ranks), 0.0, "starting times")),
        last_end_(static_cast<size_t>(schedule.ranks)) {
    if (!cells_.empty() && cells_.size() != s_.cells())
      throw Error(fmt::format("simulate: costs of {} cells for {}", cells_.size(), s_.cells()));
    if (!costs.exchange.empty()) {
      exchange_.emplace(s_, expanded(costs.exchange, static_cast<size_t>(s_.stages()), {}, "exchange costs"),
                        costs.streamed);
    }
    result_.ranks.resize(static_cast<size_t>(s_.ranks));
    for (const auto& list : s_.actions) result_.spans.emplace_back().reserve(list.size());
    gaps_.resize(s_.actions.size());
    idle_.assign(s_.actions.size(), IdleSplit(s_.forward_only));
  }

  Simulation run() {
    Replay replay(s_, WaitModel::at_consumer, messages_);
    if (!replay.run([this](int rank, size_t i, const Action& action) { step(rank, i, action); })) {
      throw Error("simulate: the schedule " + s_.name + " deadlocks; validate it first");
    }
    result_.ends = free_;
    for (int rank = 0; rank < s_.ranks; ++rank) {
      if (exchange_) result_.ends[rank] = std::max(free_[rank], exchange_->reduced(rank));
    }
    for (const double time : result_.ends) result_.step_time = std::max(result_.step_time, time);
    for (int rank = 0; rank < s_.ranks; ++rank) split_idle(rank);
    return std::move(result_);
  }

 private:
  // When the input of a pass is computed, and when it has arrived on the pass's rank.
  struct Arrival {
    double made = 0;
    double arrived = 0;
  };

  Arrival arrival(const Action& pass) const {
    if (pass.kind == ActionKind::backward_weight) return {};  // the rank has it
    const std::optional<Input> input = inputs_.of(pass);
    if (!input) return {};
    const double made = ends_[input->pass];
    if (input->boundary < 0) return {made, made};
    if (input->boundary + 1 == s_.stages()) return {made, made + head_latency_};
    return {made, std::max(made, messages_ ? posted_[pass] : 0.0) + latency_[input->boundary]};
  }

  const StageCost& cost(const Action& part) const {
    return cells_.empty() ? costs_[part.stage] : cells_[s_.cell(part.stage, part.microbatch)];
  }

  double duration(const Action& action) const {
    if (action.kind == ActionKind::overlapped_pair) {
      return pair_duration(cost(forward_of(action)), cost(backward_of(action)), action.backward_kind);
    }
    return cost(action).time.of(action.kind);
  }

  void step(int rank, size_t i, const Action& action) {
    double& free = free_[rank];
    if (!start_.gate.empty() && i == start_.gate[rank]) free = std::max(free, start_.open);
    Span& span = result_.spans[rank].emplace_back(Span{free, free});
    if (!is_compute(action.kind)) return communicate(rank, action, free, span);
    Arrival input;
    for_each_part(action, [&](const Action& part) {
      const Arrival one = arrival(part);
      input.made = std::max(input.made, one.made);
      input.arrived = std::max(input.arrived, one.arrived);
    });
    span.start = std::max(free, input.arrived);
    const double time_alone = duration(action);
    span.end = span.start + time_alone;
    if (exchange_ && !is_of_head(action.kind)) {
      for_each_part(action, [&](const Action& part) {
        span.end = std::max(span.end, exchange_->end_of_pass(rank, part, span.start, time_alone));
      });
    }
    if (span.start > last_end_[rank]) gaps_[rank].push_back({last_end_[rank], span.start});
    last_end_[rank] = span.end;
    RankTime& time = result_.ranks[rank];
    time.busy += span.end - span.start;
    time.wait_for_exchange += span.end - (span.start + time_alone);
    time.wait_for_transfer += span.start - std::min(span.start, std::max(free, input.made));
    free = span.end;
    for_each_part(action, [&](const Action& part) { ended(rank, part, span); });
  }

  void communicate(int rank, const Action& action, double free, Span& span) {
    if (is_receive(action.kind)) posted_[pass_of(action)] = free;
    if (exchange_ && action.kind == ActionKind::unshard) span = exchange_->unshard(rank, action.stage, free);
    if (exchange_ && action.kind == ActionKind::reduce_grad)
      span = exchange_->reduce(rank, action.stage, free);
  }

  void ended(int rank, const Action& part, const Span& span) {
    idle_[rank].see(part, span);
    if (part.kind != ActionKind::backward_weight) ends_[part] = std::max(ends_[part], span.end);
  }

  void split_idle(int rank) {
    RankTime& time = result_.ranks[rank];
    for (const Span& gap : gaps_[rank]) idle_[rank].add(gap.start, gap.end, time);
    idle_[rank].add(last_end_[rank], result_.step_time, time);
    if (exchange_) time.reducing = std::max(0.0, exchange_->reduced(rank) - free_[rank]);
  }

  const Schedule& s_;
  const Start& start_;
  Inputs inputs_;
  bool messages_;
  std::vector<StageCost> costs_;
  std::vector<double> latency_;
  double head_latency_;
  const std::vector<StageCost>& cells_;  // in the place of costs_, if there are some
  PassTable<double> ends_;               // of the last rank so far
  PassTable<double> posted_;             // receives of the pass's input
  std::vector<double> free_;             // [rank] when its last action so far ends
  std::vector<double> last_end_;         // [rank] of its last compute action so far
  std::vector<std::vector<Span>> gaps_;  // [rank] between its compute actions
  std::vector<IdleSplit> idle_;          // [rank]
  std::optional<ExchangeClock> exchange_;
  Simulation result_;
};

}  // namespace

double pair_duration(const StageCost& forward, const StageCost& backward, ActionKind backward_kind) {
  const double wire_f = forward.wire.forward, wire_b = backward.wire.of(backward_kind);
  const double compute_f = forward.time.forward - wire_f;
  const double compute_b = backward.time.of(backward_kind) - wire_b;
  return compute_f + compute_b + std::max(0.0, wire_f - compute_b) + std::max(0.0, wire_b - compute_f);
}

StageCost cost_of(const Costs& costs, const Schedule& schedule, const Action& pass) {
  return costs.cells.empty() ? one_for(costs.stages, pass.stage)
                             : costs.cells[schedule.cell(pass.stage, pass.microbatch)];
}

double Simulation::bubble(int rank) const {
  return step_time > 0 ? ranks[rank].idle() / step_time : 0;
}

double Simulation::bubble() const {
  double sum = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) sum += bubble(static_cast<int>(rank));
  return ranks.empty() ? 0 : sum / static_cast<double>(ranks.size());
}

Simulation simulate(const Schedule& schedule, const Costs& costs) {
  return Simulator(schedule, costs, {}).run();
}

double post_validated_step_time(const Schedule& schedule, const Costs& costs) {
  Start start{.free = std::vector<double>(schedule.ranks, 0.0), .gate = speculate(schedule).prefix};
  constexpr int settling = 8;  // steps until the ranks have found their offsets
  double settled = 0;
  for (int step = 0; step < 2 * settling; ++step) {
    const Simulation one = Simulator(schedule, costs, start).run();
    if (step + 1 == settling) settled = one.step_time;
    start.open = one.step_time;
    start.free = one.ends;
  }
  return (start.open - settled) / settling;
}

}  // namespace pptrain::schedule
