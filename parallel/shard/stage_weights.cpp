#include "parallel/shard/stage_weights.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "parallel/schedule/cost/streamed_groups.h"

namespace pptrain::shard {

using schedule::ActionKind;
using schedule::Gather;
using schedule::most_streamed_groups;
using schedule::Reduce;

namespace {

int64_t elements(nn::ParameterGroup& group) {
  int64_t sum = 0;
  for (const nn::Buffer* buffer : group.buffers()) sum += buffer->whole_compute.numel();
  return sum;
}

// Does the pass take the gradients that lie in this buffer?
bool takes(nn::Use use, const nn::Buffer& buffer) {
  if (buffer.frozen) return false;
  switch (use) {
    case nn::Use::forward:
      return false;
    case nn::Use::backward:
      return true;
    case nn::Use::backward_input:
      return buffer.with_input;
    case nn::Use::backward_weight:
      return !buffer.with_input;
  }
  throw Error("unknown use");
}

}  // namespace

struct StageWeights::Group {
  GroupExchange exchange;
  std::unique_ptr<comm::Work> gather;  // under way
  bool whole = false;                  // its compute weights are gathered
  bool read_by_w = false;              // adapters, within a W, which may still run on a second stream
  std::vector<bool> taken;             // [buffer] gradients were taken since the last sum was begun
  std::vector<bool> summed;            // [buffer] once a step: the step's sum was begun
  bool in_forward = false;             // its gradients are taken in F
};

StageWeights::~StageWeights() = default;

StageWeights::StageWeights(nn::ParameterStore& store, const ShardRanks& dense, const ShardRanks& experts,
                           const schedule::ShardOptions& options, GradientSums& sums, std::string name)
    : options_(options), sums_(sums), name_(std::move(name)) {
  groups_.reserve(store.groups().size());
  for (nn::ParameterGroup& group : store.groups()) {
    const size_t buffers = group.buffers().size();
    groups_.push_back({.exchange = GroupExchange(group, group.of_experts() ? experts : dense),
                       .gather = nullptr,
                       .whole = false,
                       .read_by_w = false,
                       .taken = std::vector<bool>(buffers),
                       .summed = std::vector<bool>(buffers),
                       .in_forward = false});
    largest_ = std::max(largest_, elements(group));
  }
}

bool StageWeights::is_sharded(size_t group) const {
  return groups_.at(group).exchange.is_sharded();
}

// --- weights ---

void StageWeights::unshard(std::optional<ActionKind> next) {
  reshard();  // what is there is of older masters
  if (options_.gather == Gather::streamed) {
    begin_pass({.kind = next.value_or(ActionKind::forward), .next = {}, .reduce_follows = false});
    return gather_ahead();
  }
  for (size_t group = 0; group < groups_.size(); ++group) gather(group);
}

void StageWeights::reshard() {
  settle();
  for (size_t group = 0; group < groups_.size(); ++group) free(group);
}

void StageWeights::settle() {
  for (size_t group = 0; group < groups_.size(); ++group) wait_for_gather(group);
}

void StageWeights::discard() {
  reshard();
  acquired_.clear();
}

void StageWeights::gather(size_t index) {
  Group& group = groups_[index];
  if (!is_sharded(index) || group.whole || group.gather) return;
  group.gather = group.exchange.unshard();
  most_whole_ = std::max(most_whole_, whole_groups());
}

void StageWeights::wait_for_gather(size_t index) {
  Group& group = groups_[index];
  if (!group.gather) return;
  group.gather->wait(
      [&] { return fmt::format("the weights of {} ({} UNSHARD)", group.exchange.group().name(), name_); });
  group.gather.reset();
  group.whole = true;
}

void StageWeights::free(size_t index) {
  Group& group = groups_[index];
  group.read_by_w = false;
  if (!group.whole) return;
  group.exchange.reshard();
  group.whole = false;
}

// The next groups of the pass, as it went the last time, and after them those of the next pass. A W gathers
// adapters alone, when it comes to them.
std::vector<size_t> StageWeights::upcoming(size_t count) const {
  std::vector<size_t> result;
  const auto add = [&](const Order& order, size_t from) {
    for (size_t i = from; i < order.size() && result.size() < count; ++i) result.push_back(order[i]);
  };
  if (pass_.kind != ActionKind::backward_weight) add(orders_[order_index(pass_.kind)], acquired_.size());
  if (pass_.next) add(orders_[order_index(*pass_.next)], 0);
  return result;
}

// The next group, and the one after a small one: its gather would not hide behind so little.
void StageWeights::gather_ahead() {
  for (const size_t next : upcoming(most_streamed_groups)) {
    const bool missing = is_sharded(next) && !groups_[next].whole && !groups_[next].gather;
    if (missing && whole_groups() >= most_streamed_groups) return;
    if (missing) gather(next);
    if (!schedule::is_small_group(elements(groups_[next].exchange.group()), largest_)) return;
  }
}

// Adapters that a W keeps are small, and more of them leave room for the next group.
int StageWeights::whole_groups() const {
  return static_cast<int>(std::ranges::count_if(
      groups_, [](const Group& group) { return (group.whole || group.gather) && !group.read_by_w; }));
}

int StageWeights::take_most_whole_groups() {
  return std::exchange(most_whole_, whole_groups());
}

size_t StageWeights::order_index(ActionKind kind) {
  if (schedule::is_of_head(kind)) return 2;
  return kind == ActionKind::forward ? 0 : 1;
}

// --- passes ---

void StageWeights::begin_pass(const pipeline::Pass& pass) {
  if (!acquired_.empty()) orders_[order_index(pass_.kind)] = std::move(acquired_);
  acquired_.clear();
  pass_ = pass;
  sums_.advance();
  if (!pass.reduce_follows || options_.reduce == Reduce::microbatch) return;
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (groups_[group].in_forward) begin_sums(group);
  }
}

void StageWeights::acquire(size_t index, nn::Use use) {
  Group& group = groups_.at(index);
  sums_.advance();
  if (nn::reads_weights(use)) {
    acquired_.push_back(index);
    if (is_sharded(index)) {
      if (!group.whole && !group.gather && options_.gather != Gather::streamed) {
        throw Error(fmt::format("the weights of {} are not gathered: the schedule lacks an UNSHARD",
                                group.exchange.group().name()));
      }
      gather(index);
      wait_for_gather(index);
    }
    if (options_.gather == Gather::streamed) gather_ahead();
  } else if (group.exchange.group()
                 .is_of_adapters()) {  // whose W reads them; all ranks come here in one order
    group.read_by_w = true;
    gather(index);
    wait_for_gather(index);
  }
  if (!nn::takes_gradients(use)) return;
  if (pass_.kind == ActionKind::forward) group.in_forward = true;
  for (size_t buffer = 0; buffer < group.taken.size(); ++buffer) {
    if (takes(use, *group.exchange.group().buffers()[buffer])) prepare_gradient(index, buffer);
  }
}

void StageWeights::release(size_t index, nn::Use use) {
  if (nn::takes_gradients(use)) {
    const bool last = pass_.reduce_follows && schedule::is_weight_gradient(pass_.kind);
    if (options_.reduce == Reduce::microbatch || last) begin_sums(index, use);
  }
  Group& group = groups_.at(index);
  if (use == nn::Use::backward_weight) group.read_by_w = false;
  const bool was_read = nn::reads_weights(use) || group.exchange.group().is_of_adapters();
  if (options_.gather != Gather::streamed || !was_read || group.read_by_w || !is_sharded(index)) return;
  const std::vector<size_t> soon = upcoming(most_streamed_groups);
  if (std::ranges::find(soon, index) == soon.end()) free(index);
}

// --- gradients ---

void StageWeights::prepare_gradient(size_t index, size_t buffer) {
  Group& group = groups_[index];
  nn::ParameterGroup& parameters = group.exchange.group();
  if (group.summed[buffer]) {
    throw Error(
        fmt::format("{} takes gradients after they were summed: the schedule's REDUCE_GRAD is too early",
                    parameters.name()));
  }
  if (options_.reduce == Reduce::microbatch) {
    sums_.wait_for(group.exchange, buffer, [&] { return reduction_of(index); });
    parameters.restore_whole_grad(buffer);
  }
  group.taken[buffer] = true;
}

// If uses overlap (an I that ends within a W), the other use's gradients may still be on their way.
void StageWeights::begin_sums(size_t index, nn::Use use) {
  Group& group = groups_[index];
  nn::ParameterGroup& parameters = group.exchange.group();
  for (size_t buffer = 0; buffer < group.taken.size(); ++buffer) {
    if (!group.taken[buffer] || !takes(use, *parameters.buffers()[buffer])) continue;
    group.taken[buffer] = false;
    parameters.complete_grad(buffer);
    if (!parameters.place().own_gradient) {
      if (!group.exchange.is_summed(buffer)) continue;
      group.summed[buffer] = true;
      sums_.begin(group.exchange, buffer, [] {});
      continue;
    }
    sums_.begin(group.exchange, buffer, [&group, &parameters, buffer] {
      parameters.buffers()[buffer]->grad.add_(group.exchange.own_shard(buffer));
      parameters.release_whole_grad(buffer);
    });
  }
}

void StageWeights::reduce_grad() {
  for (size_t group = 0; group < groups_.size(); ++group) begin_sums(group);
}

void StageWeights::finish() {
  sums_.finish([&] { return fmt::format("the sums of gradients ({} REDUCE_GRAD)", name_); });
  begin_pass({});
  for (Group& group : groups_) {
    group.summed.assign(group.summed.size(), false);
    if (!group.exchange.group().place().own_gradient) group.exchange.group().complete_grad();
  }
}

std::string StageWeights::reduction_of(size_t index) const {
  return fmt::format("the gradient of {} ({} REDUCE_GRAD)", groups_[index].exchange.group().name(), name_);
}

}  // namespace pptrain::shard
