// That all compute actions are there, and in an order that can run.
#include <spdlog/fmt/fmt.h>

#include "parallel/schedule/proof/checks.h"
#include "parallel/schedule/proof/grid.h"

namespace pptrain::schedule {
namespace {

void check_ascending(const Places& places, Places::What what, int stage, int mb, const char* name) {
  if (mb == 0 || places.of(what, stage, mb) > places.of(what, stage, mb - 1)) return;
  refuse(places.schedule(), places.rank_of(stage), places.of(what, stage, mb),
         fmt::format("the {} of microbatch {} of stage {} comes before that of microbatch {}; a stage takes "
                     "its microbatches in ascending order",
                     name, mb, stage, mb - 1));
}

}  // namespace

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

void check_order(const Places& places) {
  const Schedule& s = places.schedule();
  for (int stage = 0; stage < s.stages(); ++stage) {
    const int rank = places.rank_of(stage);
    for (int mb = 0; mb < s.microbatches; ++mb) {
      check_ascending(places, Places::forward, stage, mb, "forward");
      if (s.forward_only) continue;
      check_ascending(places, Places::gradient, stage, mb, "backward");
      check_ascending(places, Places::weight, stage, mb, "weight gradient");
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

}  // namespace pptrain::schedule
