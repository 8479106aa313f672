#include "parallel/schedule/proof/validate.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/schedule/proof/places.h"

namespace pptrain::schedule {
namespace {

void check_sizes(const Schedule& s) {
  if (s.ranks < 1 || s.stages_per_rank < 1 || s.microbatches < 1) {
    throw Error("a schedule needs at least 1 rank, 1 stage per rank and 1 microbatch");
  }
  if (s.sequence_slices < 1 || s.microbatches % s.sequence_slices != 0)
    throw Error(fmt::format("a schedule of {} microbatches is not one of lists in {} sequence slices",
                            s.microbatches, s.sequence_slices));
  if (s.actions.size() != static_cast<size_t>(s.ranks)) {
    throw Error(fmt::format("a schedule for {} ranks has {} lists of actions", s.ranks, s.actions.size()));
  }
}

// before: the microbatch that comes before this one.
void check_follows(const Places& places, Places::What what, int stage, int mb, int before, const char* name) {
  if (before < 0 || places.of(what, stage, mb) > places.of(what, stage, before)) return;
  refuse(
      places.schedule(), places.rank_of(stage), places.of(what, stage, mb),
      fmt::format("the {} of microbatch {} of stage {} comes before that of microbatch {}; a stage takes its "
                  "microbatches in {} order",
                  name, mb, stage, before,
                  before < mb ? "ascending" : "their lists' order, the last slice first,"));
}

enum class Parameters : uint8_t { always_whole, sharded, unsharded };

struct StageState {
  Parameters parameters = Parameters::always_whole;
  int reductions = 0;        // REDUCE_GRADs in the whole list
  int weight_gradients = 0;  // so far
  int unreduced = 0;         // of these, by no REDUCE_GRAD so far
};

// UNSHARD, RESHARD and REDUCE_GRAD. A stage that is never unsharded is taken to be whole all the time; a list
// without any REDUCE_GRAD leaves gradients to others.
class WholeStageCheck {
 public:
  explicit WholeStageCheck(const Schedule& schedule)
      : s_(schedule), stages_(static_cast<size_t>(schedule.stages())) {}

  void run() {
    for (const auto& list : s_.actions) {
      for (const Action& action : list) {
        if (action.kind == ActionKind::unshard) stages_[action.stage].parameters = Parameters::sharded;
        if (action.kind == ActionKind::reduce_grad) any_reduce_ = true, ++stages_[action.stage].reductions;
      }
    }
    for (int rank = 0; rank < s_.ranks; ++rank) {
      for (size_t i = 0; i < s_.actions[rank].size(); ++i) check(rank, i, s_.actions[rank][i]);
      if (any_reduce_) check_end(rank);
    }
  }

 private:
  void check(int rank, size_t i, const Action& action) {
    if (is_compute(action.kind)) {
      for_each_part(action, [&](const Action& part) { check_compute(rank, i, part); });
    } else if (action.kind == ActionKind::unshard || action.kind == ActionKind::reshard) {
      check_sharding(rank, i, action);
    } else if (action.kind == ActionKind::reduce_grad) {
      check_reduction(rank, i, stages_[action.stage]);
    }
  }

  void check_compute(int rank, size_t i, const Action& part) {
    StageState& stage = stages_[part.stage];
    if (needs_weights(part.kind) && stage.parameters == Parameters::sharded)
      refuse(s_, rank, i, "the stage is not unsharded");
    if (!is_weight_gradient(part.kind)) return;
    ++stage.weight_gradients;
    ++stage.unreduced;
  }

  void check_sharding(int rank, size_t i, const Action& action) {
    Parameters& parameters = stages_[action.stage].parameters;
    if (action.kind == ActionKind::unshard) {
      if (parameters == Parameters::unsharded) refuse(s_, rank, i, "the stage is unsharded already");
      parameters = Parameters::unsharded;
    } else {
      if (parameters != Parameters::unsharded) refuse(s_, rank, i, "the stage is not unsharded");
      parameters = Parameters::sharded;
    }
  }

  // A stage's only REDUCE_GRAD takes all gradients; of several, each takes those of one microbatch.
  void check_reduction(int rank, size_t i, StageState& stage) {
    if (stage.unreduced == 0) {
      refuse(s_, rank, i,
             stage.weight_gradients == 0 ? "the stage has no gradients yet"
                                         : "the gradients of the stage are reduced already");
    }
    if (stage.reductions == 1 && stage.unreduced != s_.microbatches) {
      refuse(s_, rank, i,
             fmt::format("only {} of {} weight gradients of the stage are there", stage.unreduced,
                         s_.microbatches));
    }
    if (stage.reductions > 1 && stage.unreduced > 1) {
      refuse(
          s_, rank, i,
          fmt::format("{} weight gradients of the stage are there; where it is reduced more than once, each "
                      "is reduced before the next",
                      stage.unreduced));
    }
    stage.unreduced = 0;
  }

  void check_end(int rank) {
    for (const int stage : s_.stages_of(rank)) {
      if (stages_[stage].unreduced > 0 || stages_[stage].reductions == 0)
        refuse(s_, rank, s_.actions[rank].size(), fmt::format("{}REDUCE_GRAD is missing", stage));
    }
  }

  const Schedule& s_;
  std::vector<StageState> stages_;  // [stage]; each is on one rank
  bool any_reduce_ = false;
};

// RECV_HEAD: of what another rank makes for this one, as it comes from there: by ascending microbatch. What
// no RECV_HEAD names comes when it is used.
class HeadReceiveCheck {
 public:
  explicit HeadReceiveCheck(const Places& places)
      : s_(places.schedule()), last_stage_(s_.stages() - 1), last_rank_(places.rank_of(last_stage_)) {}

  void run() {
    for (int rank = 0; rank < s_.ranks; ++rank) {
      const auto& list = s_.actions[rank];
      if (std::ranges::find(list, ActionKind::recv_head, &Action::kind) == list.end()) continue;
      next_.clear();
      for (size_t i = 0; i < list.size(); ++i)
        for_each_part(list[i], [&](const Action& part) { check(rank, i, part); });
    }
  }

 private:
  void check(int rank, size_t i, const Action& action) {
    const int used = action.microbatch + 1;
    if (action.kind == ActionKind::recv_head) {
      if (action.stage >= s_.ranks)
        refuse(s_, rank, i, fmt::format("it is of the rank's first stage, here {}", s_.stages_of(rank)[0]));
      receive(rank, i, maker_of(action));
    } else if (action.kind == ActionKind::head_forward) {
      next(ActionKind::forward, last_stage_, used);
    } else if (action.kind == ActionKind::head_backward) {
      for (int other = 0; other < s_.ranks; ++other) next(ActionKind::head_forward, other, used);
    } else if (action.stage == last_stage_ && is_gradient(action.kind)) {
      for (int other = 0; other < s_.ranks; ++other) next(ActionKind::head_backward, other, used);
    }
  }

  void receive(int rank, size_t i, const Action& maker) {
    const bool input = maker.kind == ActionKind::forward && maker.stage == last_stage_ && rank != last_rank_;
    const bool part = is_of_head(maker.kind) && maker.stage >= 0 && maker.stage < s_.ranks &&
                      maker.stage != rank &&
                      (maker.kind == ActionKind::head_forward || (rank == last_rank_ && !s_.forward_only));
    if (!input && !part)
      refuse(s_, rank, i, fmt::format("{} makes nothing that this rank receives", to_string(maker)));
    const int expected = next(maker.kind, maker.stage);
    if (maker.microbatch != expected)
      refuse(s_, rank, i, fmt::format("what comes next from there is of microbatch {}", expected));
    next(maker.kind, maker.stage, expected + 1);
  }

  // The microbatch of which such an action's result comes next, after all that come before `least`.
  int next(ActionKind kind, int stage, int least = 0) {
    int& number = next_[{kind, stage}];
    return number = std::max(number, least);
  }

  const Schedule& s_;
  int last_stage_, last_rank_;
  std::map<std::pair<ActionKind, int>, int> next_;  // of the rank that is checked
};

constexpr int most_listed = 16;  // ranks

// " for the forward of microbatch 3 by stage 1 on rank 1"; nothing if the action needs no other rank.
std::string waits_for(const Places& places, const Action& action) {
  std::string text;
  for_each_part(action, [&](const Action& part) {
    const bool is_forward = part.kind == ActionKind::forward || part.kind == ActionKind::recv_f;
    const bool is_backward = is_gradient(part.kind) || part.kind == ActionKind::recv_b;
    if (!is_forward && !is_backward) return;
    const int source = is_forward ? part.stage - 1 : part.stage + 1;
    if (source < 0 || source >= places.schedule().stages()) return;
    text += fmt::format(" {} the {} of microbatch {} by stage {} on rank {}", text.empty() ? "for" : "and",
                        is_forward ? "forward" : "backward", part.microbatch, source, places.rank_of(source));
  });
  return text;
}

// Every stage x microbatch has its F, B or I, and B or W.
void check_complete(const Places& places) {
  const Schedule& s = places.schedule();
  for (int stage = 0; stage < s.stages(); ++stage) {
    const auto check_there = [&](Places::What what, int mb, ActionKind kind, const char* instead) {
      if (places.of(what, stage, mb) != Places::absent) return;
      const int rank = places.rank_of(stage);
      refuse(s, rank, s.actions[rank].size(),
             fmt::format("{}{} is missing", to_string({kind, stage, mb}), instead));
    };
    for (int mb = 0; mb < s.microbatches; ++mb) {
      check_there(Places::forward, mb, ActionKind::forward, "");
      if (s.forward_only) continue;
      check_there(Places::gradient, mb, ActionKind::backward, " (or I)");
      check_there(Places::weight, mb, ActionKind::backward_weight, "");
    }
  }
}

// The ranks' parts of a head that is spread: S and T of every microbatch.
void check_head(const Places& places) {
  const Schedule& s = places.schedule();
  for (int rank = 0; rank < s.ranks; ++rank) {
    for (int mb = 0; mb < s.microbatches; ++mb) {
      for (const auto& [what, action] : {std::pair(Places::head_forward, head_forward(rank, mb)),
                                         std::pair(Places::head_backward, head_backward(rank, mb))}) {
        if (places.of(what, rank, mb) == Places::absent)
          refuse(s, rank, s.actions[rank].size(), fmt::format("{} is missing", to_string(action)));
        check_follows(places, what, rank, mb, mb - 1, "part of the head");
      }
      const int32_t backward = places.of(Places::head_backward, rank, mb);
      if (backward > places.of(Places::head_forward, rank, mb)) continue;
      refuse(s, rank, backward,
             fmt::format("it comes before {}, whose logits it needs", to_string(head_forward(rank, mb))));
    }
  }
}

// F before B or I, I before W; microbatches of each stage in their order. After check_complete.
void check_order(const Places& places) {
  const Schedule& s = places.schedule();
  for (int stage = 0; stage < s.stages(); ++stage) {
    const int rank = places.rank_of(stage);
    for (int mb = 0; mb < s.microbatches; ++mb) {
      check_follows(places, Places::forward, stage, mb, mb - 1, "forward");
      if (s.forward_only) continue;
      check_follows(places, Places::gradient, stage, mb, s.backward_before(mb), "backward");
      check_follows(places, Places::weight, stage, mb, s.backward_before(mb), "weight gradient");
      const int32_t gradient = places.of(Places::gradient, stage, mb);
      const int32_t weight = places.of(Places::weight, stage, mb);
      if (gradient <= places.of(Places::forward, stage, mb)) {
        refuse(
            s, rank, gradient,
            fmt::format("the backward comes before {}, whose gradient it is", to_string(forward(stage, mb))));
      }
      if (weight < gradient) {
        refuse(s, rank, weight,
               fmt::format("the weight gradient comes before {}, which leaves its operands",
                           to_string(backward_input(stage, mb))));
      }
    }
  }
}

// The lists come to their end; if they do not, the refusal tells what each rank waits for.
void check_progress(const Places& places, WaitModel model) {
  const Schedule& s = places.schedule();
  Replay replay(s, model, places.has_communication());
  if (replay.run([](int, size_t, const Action&) {})) return;
  const auto& positions = replay.positions();
  std::string waiting;
  int first = -1;
  int listed = 0;
  for (int rank = 0; rank < s.ranks; ++rank) {
    const auto& list = s.actions[rank];
    if (positions[rank] >= list.size()) continue;
    if (first < 0) first = rank;
    if (++listed > most_listed) continue;
    const Action& action = list[positions[rank]];
    const int open = replay.blocking() != nullptr ? replay.blocking()->open(rank) : 0;
    waiting += fmt::format("\n  rank {} waits in step {} ({}){}", rank, positions[rank], to_string(action),
                           open > 0 ? fmt::format(" for the other ends of {} of its messages", open)
                                    : waits_for(places, action));
  }
  if (listed > most_listed) waiting += fmt::format("\n  and {} more ranks", listed - most_listed);
  refuse(s, first, positions[first], fmt::format("deadlock, no rank can go on:{}", waiting));
}

}  // namespace

void validate(const Schedule& schedule, WaitModel model) {
  check_sizes(schedule);
  const Places places(schedule);
  check_complete(places);
  check_order(places);
  if (schedule.spread_head) {
    check_head(places);
    HeadReceiveCheck(places).run();
  }
  if (places.has_communication()) check_messages(places);
  if (places.has_whole_stage_actions()) WholeStageCheck(schedule).run();
  check_progress(places, schedule.blocking_sends ? WaitModel::blocking : model);
}

}  // namespace pptrain::schedule
