#include "parallel/schedule/schedule.h"

#include <algorithm>

namespace pptrain::schedule {

std::string to_string(Placement placement) {
  return placement == Placement::loop ? "loop" : "v";
}

std::string Schedule::microbatches_text() const {
  std::string text = std::to_string(lists()) + " microbatches";
  if (sequence_slices > 1) text += " in " + std::to_string(sequence_slices) + " slices each";
  return text;
}

std::string Schedule::slices_text() const {
  return sequence_slices > 1 ? ", each in " + std::to_string(sequence_slices) + " sequence slices" : "";
}

int Schedule::rank_of(int stage) const {
  const int position = stage % ranks;
  const bool upwards = placement == Placement::v && (stage / ranks) % 2 == 1;
  return upwards ? ranks - 1 - position : position;
}

std::vector<int> Schedule::stages_of(int rank) const {
  std::vector<int> stages;
  for (int chunk = 0; chunk < stages_per_rank; ++chunk) {
    const bool upwards = placement == Placement::v && chunk % 2 == 1;
    stages.push_back(chunk * ranks + (upwards ? ranks - 1 - rank : rank));
  }
  return stages;
}

bool Schedule::has(ActionKind kind) const {
  return std::ranges::any_of(
      actions, [&](const auto& list) { return std::ranges::find(list, kind, &Action::kind) != list.end(); });
}

bool Schedule::has_communication() const {
  return std::ranges::any_of(actions, [](const auto& list) {
    return std::ranges::any_of(
        list, [](ActionKind kind) { return is_send(kind) || is_receive(kind); }, &Action::kind);
  });
}

Schedule Schedule::without_actions() const {
  return {.name = name,
          .ranks = ranks,
          .stages_per_rank = stages_per_rank,
          .microbatches = microbatches,
          .sequence_slices = sequence_slices,
          .placement = placement,
          .forward_only = forward_only,
          .spread_head = spread_head,
          .blocking_sends = false,
          .actions = std::vector<std::vector<Action>>(static_cast<size_t>(ranks))};
}

Schedule Schedule::of_whole_lists() const {
  Schedule whole = without_actions();
  whole.microbatches = lists();
  whole.sequence_slices = 1;
  return whole;
}

PlacementTable::PlacementTable(const Schedule& schedule) {
  for (int stage = 0; stage < schedule.stages(); ++stage) rank_of.push_back(schedule.rank_of(stage));
  for (size_t stage = 0; stage + 1 < rank_of.size(); ++stage) {
    crosses.push_back(rank_of[stage] != rank_of[stage + 1]);
  }
}

}  // namespace pptrain::schedule
