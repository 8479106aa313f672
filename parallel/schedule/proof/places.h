// What the checks of validate() share: the table in which they look up where each action stands, and the
// refusal with its picture. Internal to this folder.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// Throws Error: the schedule is unsound at this place of the rank's list, because of `why`, with a picture of
// the ranks x steps around it, the cell itself written >so<. An index past the end marks the empty place
// after the rank's last action.
[[noreturn]] void refuse(const Schedule& schedule, int rank, size_t index, std::string_view why);

// Where each action of a schedule stands.
class Places {
 public:
  // What is done to a microbatch of a stage; B does `gradient` and `weight`. Of head_*: of a rank's first
  // stage.
  enum What { forward, gradient, weight, head_forward, head_backward, send_f, recv_f, send_b, recv_b };
  static constexpr int32_t absent = -1;

  // Throws as validate() does for an action whose stage or microbatch does not exist or whose stage is on
  // another rank, for a repeated action, and for a pair that is no F and B or I. The schedule must outlive
  // this.
  explicit Places(const Schedule& schedule);

  const Schedule& schedule() const { return s_; }
  bool has_communication() const { return communication_; }
  bool has_whole_stage_actions() const { return whole_stage_actions_; }
  int rank_of(int stage) const { return table_.rank_of[stage]; }
  bool crosses_ranks(int boundary) const { return table_.crosses[boundary] != 0; }

  // The place in the list of the stage's rank, or absent. Of messages only if has_communication().
  int32_t of(What what, int stage, int microbatch) const { return places_[what][s_.cell(stage, microbatch)]; }
  int32_t of(const Action& message) const {
    return of(what_of(message.kind), message.stage, message.microbatch);
  }

 private:
  // The place kind of a send or a receive; the four stand in one order here and there.
  static constexpr What what_of(ActionKind message) {
    return static_cast<What>(send_f + static_cast<int>(message) - static_cast<int>(ActionKind::send_f));
  }
  void note(int rank, size_t index, const Action& action);
  void note_head(int rank, size_t index, const Action& action);
  void note_message(int rank, size_t index, const Action& action);
  void put(What what, int rank, size_t index, const Action& action);

  const Schedule& s_;
  PlacementTable table_;
  bool communication_ = false;
  bool whole_stage_actions_ = false;                     // UNSHARD, RESHARD, REDUCE_GRAD
  std::array<std::vector<int32_t>, recv_b + 1> places_;  // [What][stage x microbatch]
};

// One send and one receive of what goes from rank to rank, around the actions that make and use it, and the
// receives of each channel in the order of its sends. Throws as validate() does. For complete and ordered
// schedules that have communication.
void check_messages(const Places& places);

}  // namespace pptrain::schedule
