#include <algorithm>
#include <array>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/proof/validate.h"

namespace pptrain::schedule {
namespace {

// Proofs of long lists, overlapped with the next pass: a pass needs only the places of actions, which the
// proof of the incoming list has checked.
class Proofs {
 public:
  void begin(const std::shared_ptr<const Schedule>& schedule, WaitModel model = WaitModel::at_consumer) {
    constexpr size_t most_at_once = size_t{1} << 14;  // passes: 2 ms
    const auto prove = [schedule, model] { validate(*schedule, model); };
    if (schedule->cells() <= most_at_once) return prove();
    proofs_.push_back(std::async(std::launch::async, prove));
  }
  // Throws what the first that failed has thrown.
  void end() {
    for (std::future<void>& proof : proofs_) proof.get();
  }

 private:
  std::vector<std::future<void>> proofs_;
};

// Does every stage have at least one of the kind, or exactly `number`?
constexpr int any_number = -1;
bool every_stage_has(const Schedule& schedule, ActionKind kind, int number) {
  std::vector<int> found(static_cast<size_t>(schedule.stages()));
  for (const auto& list : schedule.actions) {
    for (const Action& action : list) found[action.stage] += action.kind == kind;
  }
  return std::ranges::all_of(found, [&](int n) { return number == any_number ? n > 0 : n == number; });
}

template <typename Keep>
Schedule filtered(const Schedule& schedule, Keep&& keep) {
  Schedule result = schedule.without_actions();
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    result.actions[rank].reserve(schedule.actions[rank].size());
    std::ranges::copy_if(schedule.actions[rank], std::back_inserter(result.actions[rank]), keep,
                         &Action::kind);
  }
  return result;
}

bool is_no_communication(ActionKind kind) {
  return !is_communication(kind);
}

Schedule without(const Schedule& schedule, ActionKind a, ActionKind b) {
  return filtered(schedule, [&](ActionKind kind) { return kind != a && kind != b; });
}

Schedule reduce_anew(const Schedule& schedule, const ShardOptions& shard) {
  return add_reduce_grad(without(schedule, ActionKind::reduce_grad, ActionKind::reduce_grad), shard.reduce);
}

Schedule gather_anew(const Schedule& schedule, const ShardOptions& shard) {
  return add_unshard(without(schedule, ActionKind::unshard, ActionKind::reshard), shard.gather);
}

// One step of lowering.
struct Pass {
  std::string_view name;
  bool (*applies)(const Schedule& given, const ShardOptions&);  // to the list that was given to lower()
  Schedule (*run)(const Schedule&, const ShardOptions&);
  WaitModel proven = WaitModel::at_consumer;  // of what comes out
};

constexpr std::array passes = std::to_array<Pass>({
    {.name = "split_pairs",
     .applies = [](const Schedule& given,
                   const ShardOptions&) { return given.has(ActionKind::overlapped_pair); },
     .run =
         [](const Schedule& s, const ShardOptions& shard) {
           // The head's input leaves within a pair, before the pair ends.
           const bool head_in_pair = shard.blocking_sends && s.spread_head;
           return split_pairs(s, shard.keep_pairs && !head_in_pair);
         }},
    {.name = "add_communication",
     // A given list may have receives where a rank whose sends block would wait for ever.
     .applies = [](const Schedule& given,
                   const ShardOptions& shard) { return !given.has_communication() || shard.blocking_sends; },
     .run = [](const Schedule& s,
               const ShardOptions&) { return add_communication(filtered(s, is_no_communication)); },
     .proven = WaitModel::in_place},
    {.name = "hoist_receives",
     .applies = [](const Schedule& given,
                   const ShardOptions& shard) { return !given.has_communication() && !shard.blocking_sends; },
     .run = [](const Schedule& s, const ShardOptions&) { return hoist_receives(s); }},
    {.name = "add_reduce_grad",
     .applies =
         [](const Schedule& given, const ShardOptions& shard) {
           const int number = shard.reduce == Reduce::step ? 1 : given.microbatches;
           return shard.reduce != Reduce::none && !given.forward_only &&
                  !every_stage_has(given, ActionKind::reduce_grad, number);
         },
     .run = reduce_anew},
    {.name = "add_unshard",
     .applies =
         [](const Schedule& given, const ShardOptions& shard) {
           return shard.gather != Gather::never && !every_stage_has(given, ActionKind::unshard, any_number);
         },
     .run = gather_anew},
    {.name = "match_messages",
     .applies = [](const Schedule&, const ShardOptions& shard) { return shard.blocking_sends; },
     .run = [](const Schedule& s, const ShardOptions&) { return match_messages(s); }},
});

}  // namespace

std::vector<std::string> pass_names() {
  std::vector<std::string> names;
  for (const Pass& pass : passes) names.emplace_back(pass.name);
  return names;
}

Schedule whole_head(const Schedule& schedule) {
  Schedule result =
      filtered(schedule, [](ActionKind kind) { return !is_of_head(kind) && kind != ActionKind::recv_head; });
  result.spread_head = false;
  return result;
}

Schedule compute_only(const Schedule& schedule) {
  return filtered(schedule, is_compute);
}

Schedule lower(Schedule given, const ShardOptions& shard, std::string_view last) {
  validate(given);
  Proofs proofs;
  auto schedule = std::make_shared<Schedule>(std::move(given));
  const std::shared_ptr<const Schedule> first = schedule;
  for (const Pass& pass : passes) {
    if (pass.applies(*first, shard)) {
      schedule = std::make_shared<Schedule>(pass.run(*schedule, shard));
      proofs.begin(schedule, pass.proven);
    }
    if (pass.name == last) break;
  }
  proofs.end();
  return std::move(*schedule);
}

Schedule split_pairs(const Schedule& schedule, bool same_stage) {
  Schedule result = schedule.without_actions();
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    auto& list = result.actions[rank];
    list.reserve(schedule.actions[rank].size());
    for (const Action& action : schedule.actions[rank]) {
      if (same_stage && action.stage != action.backward_stage) {
        list.push_back(action);
      } else {
        for_each_part(action, [&](const Action& part) { list.push_back(part); });
      }
    }
  }
  return result;
}

}  // namespace pptrain::schedule
