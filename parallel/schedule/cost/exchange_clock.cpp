#include "parallel/schedule/cost/exchange_clock.h"

#include <algorithm>
#include <utility>

namespace pptrain::schedule {

ExchangeClock::ExchangeClock(const Schedule& schedule, std::vector<ExchangeCost> costs, bool streamed)
    : costs_(std::move(costs)),
      streamed_(streamed),
      stages_(static_cast<size_t>(schedule.stages())),
      channels_(static_cast<size_t>(schedule.ranks)) {}

Span ExchangeClock::use(double& channel, double at, double time) {
  const double start = std::max(channel, at);
  channel = start + time;
  return {start, channel};
}

Span ExchangeClock::unshard(int rank, int stage, double now) {
  const ExchangeCost& cost = costs_[stage];
  const double group = cost.gather / cost.groups;
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
  const double group = cost.gather / cost.groups;
  double& channel = channels_[rank].gather;
  const bool forward = part.kind == ActionKind::forward;
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
  const auto wait = [&](const Arrival& groups) {
    end = std::max({end, groups.first + time, groups.last + time / costs_[part.stage].groups});
  };
  if (stage.unsharded && needs_weights(part.kind)) {
    if (streamed_) stream(rank, part, start);
    wait(stage.weights);
  }
  channels_[rank].last_stage = -1;
  if (!is_weight_gradient(part.kind)) return end;
  wait(stage.buffers);
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
  channels.reduce = span.end = std::max(span.end, now + group);
  stages_[stage].buffers = {span.start + group, span.end};
  return span;
}

}  // namespace pptrain::schedule
