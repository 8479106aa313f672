// Where each action of a schedule stands: the table in which the checks of validate() look things up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

class Places {
 public:
  // What is done to a microbatch of a stage; B does `gradient` and `weight`.
  enum What { forward, gradient, weight, send_f, recv_f, send_b, recv_b };
  static constexpr int32_t absent = -1;

  // Throws as validate() does on an action of a stage or microbatch that does not exist, of a stage on
  // another rank, on one that is done a second time, and on a pair that is no F and B or I. The schedule must
  // outlive this.
  explicit Places(const Schedule& schedule);

  const Schedule& schedule() const { return s_; }
  bool has_communication() const { return communication_; }
  bool has_whole_stage_actions() const { return whole_stage_actions_; }
  int rank_of(int stage) const { return table_.rank_of[stage]; }
  bool crosses_ranks(int boundary) const { return table_.crosses[boundary] != 0; }

  // The place in the list of the stage's rank, or absent. Of messages only if has_communication().
  int32_t of(What what, int stage, int microbatch) const { return places_[what][s_.cell(stage, microbatch)]; }

 private:
  void note(int rank, size_t index, const Action& action);
  void note_message(int rank, size_t index, const Action& action);
  void put(What what, int rank, size_t index, const Action& action);

  const Schedule& s_;
  PlacementTable table_;
  bool communication_ = false;
  bool whole_stage_actions_ = false;                     // UNSHARD, RESHARD, REDUCE_GRAD
  std::array<std::vector<int32_t>, recv_b + 1> places_;  // [What][stage x microbatch]
};

}  // namespace pptrain::schedule
