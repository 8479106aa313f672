#include "parallel/schedule/proof/validate.h"

#include <spdlog/fmt/fmt.h>

#include "core/base/error.h"
#include "parallel/schedule/proof/checks.h"

namespace pptrain::schedule {
namespace {

void check_sizes(const Schedule& s) {
  if (s.ranks < 1 || s.stages_per_rank < 1 || s.microbatches < 1) {
    throw Error("a schedule needs at least 1 rank, 1 stage per rank and 1 microbatch");
  }
  if (s.actions.size() != static_cast<size_t>(s.ranks)) {
    throw Error(fmt::format("a schedule for {} ranks has {} lists of actions", s.ranks, s.actions.size()));
  }
}

}  // namespace

void validate(const Schedule& schedule, ReceiveModel model) {
  check_sizes(schedule);
  const Places places(schedule);
  check_complete(places);
  check_order(places);
  if (places.has_communication()) check_messages(places);
  check_whole_stage_actions(places);
  check_progress(places, model);
}

}  // namespace pptrain::schedule
