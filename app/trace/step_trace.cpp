#include "app/trace/step_trace.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace pptrain::app {

namespace {

constexpr double unknown = -1;  // of StepTrace::waited, as a number to send

struct PhaseInfo {
  const char* name;
  comm::ActivityKind doing;  // wait: an exchange, in which the rank mostly waits for others
};

constexpr auto phases = std::to_array<PhaseInfo>({{"data", comm::ActivityKind::storage},
                                                  {"zero gradients", comm::ActivityKind::work},
                                                  {"embedding gradients", comm::ActivityKind::wait},
                                                  {"loss", comm::ActivityKind::wait},
                                                  {"gradient norm", comm::ActivityKind::work},
                                                  {"norm exchange", comm::ActivityKind::wait},
                                                  {"optimizer", comm::ActivityKind::work},
                                                  {"evaluation", comm::ActivityKind::storage},
                                                  {"checkpoint", comm::ActivityKind::storage}});
static_assert(phases.size() == static_cast<size_t>(Phase::count));

}  // namespace

const char* name(Phase phase) {
  return phases[static_cast<size_t>(phase)].name;
}

comm::ActivityKind doing(Phase phase) {
  return phases[static_cast<size_t>(phase)].doing;
}

schedule::RankStep to_rank_step(const StepTrace& trace) {
  schedule::RankStep step{.step = trace.span, .actions = {}, .work = {}, .waited = trace.waited};
  for (const ActionSpan& action : trace.actions) step.actions.push_back(action.span);
  for (const PhaseSpan& phase : trace.phases) {
    if (doing(phase.phase) != comm::ActivityKind::wait) step.work.push_back(phase.span);
  }
  return step;
}

std::vector<double> encode(std::span<const StepTrace> steps) {
  std::vector<double> numbers;
  for (const StepTrace& step : steps) {
    numbers.insert(numbers.end(), {static_cast<double>(step.step), step.span.start, step.span.end,
                                   step.waited.value_or(unknown), static_cast<double>(step.actions.size()),
                                   static_cast<double>(step.phases.size())});
    for (const auto& [wait, span] : step.actions) numbers.insert(numbers.end(), {wait, span.start, span.end});
    for (const auto& [phase, span] : step.phases) {
      numbers.insert(numbers.end(), {static_cast<double>(phase), span.start, span.end});
    }
  }
  return numbers;
}

std::vector<StepTrace> decode(std::span<const double> numbers) {
  std::vector<StepTrace> steps;
  size_t at = 0;
  const auto next = [&] {
    if (at == numbers.size()) throw Error("a step's times from another rank are cut short");
    return numbers[at++];
  };
  while (at < numbers.size()) {
    StepTrace& step = steps.emplace_back();
    step.step = static_cast<int64_t>(next());
    step.span.start = next();
    step.span.end = next();
    if (const double waited = next(); waited != unknown) step.waited = waited;
    step.actions.resize(static_cast<size_t>(next()));
    step.phases.resize(static_cast<size_t>(next()));
    for (auto& [wait, span] : step.actions) wait = next(), span.start = next(), span.end = next();
    for (auto& [phase, span] : step.phases) {
      phase = static_cast<Phase>(next());
      span.start = next();
      span.end = next();
    }
  }
  return steps;
}

std::string kernel_shares_json(const kernels::KernelTimes& times, int64_t steps) {
  using Json = nlohmann::ordered_json;
  const auto each = [&](double sum) { return sum / static_cast<double>(std::max<int64_t>(steps, 1)); };
  std::vector<const kernels::KernelTimes::value_type*> sorted;
  for (const auto& entry : times) sorted.push_back(&entry);
  std::ranges::stable_sort(sorted, std::ranges::greater(),
                           [](const auto* entry) { return entry->second.seconds; });
  Json list = Json::array();
  for (const auto* entry : sorted) {
    const auto& [name, product] = entry->first;
    const kernels::KernelTime& time = entry->second;
    Json json{{"kernel", name}};
    if (product) json["product"] = {product->m, product->n, product->k};
    json["calls"] = each(static_cast<double>(time.calls));
    json["seconds"] = each(time.seconds);
    json["flops"] = each(time.cost.product_flops + time.cost.attention_flops);
    json["bytes"] = each(time.cost.bytes);
    list.push_back(json);
  }
  return list.dump();
}

}  // namespace pptrain::app
