#include "parallel/schedule/proof/places.h"

#include <spdlog/fmt/fmt.h>

#include "parallel/schedule/proof/grid.h"

namespace pptrain::schedule {

Places::Places(const Schedule& schedule) : s_(schedule), table_(schedule) {
  for (const What what : {forward, gradient, weight}) places_[what].assign(s_.cells(), absent);
  for (int rank = 0; rank < s_.ranks; ++rank) {
    const auto& list = s_.actions[rank];
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].kind == ActionKind::overlapped_pair && !is_gradient(list[i].backward_kind)) {
        refuse(s_, rank, i, "an overlapped pair is an F, then a B or I");
      }
      for_each_part(list[i], [&](const Action& action) { note(rank, i, action); });
    }
  }
}

void Places::note(int rank, size_t index, const Action& action) {
  if (action.stage < 0 || action.stage >= s_.stages()) {
    refuse(s_, rank, index,
           fmt::format("there is no stage {}: the stages are 0 to {}", action.stage, s_.stages() - 1));
  }
  if (table_.rank_of[action.stage] != rank) {
    refuse(s_, rank, index,
           fmt::format("stage {} is on rank {}", action.stage, table_.rank_of[action.stage]));
  }
  if (!is_compute(action.kind) && !is_communication(action.kind)) {
    whole_stage_actions_ = true;
    return;
  }
  if (action.microbatch < 0 || action.microbatch >= s_.microbatches) {
    refuse(
        s_, rank, index,
        fmt::format("there is no microbatch {}: they are 0 to {}", action.microbatch, s_.microbatches - 1));
  }
  if (is_communication(action.kind)) return note_message(rank, index, action);
  if (action.kind == ActionKind::forward) return put(forward, rank, index, action);
  if (s_.forward_only) refuse(s_, rank, index, "a forward-only schedule has no backward");
  if (action.kind != ActionKind::backward_weight) put(gradient, rank, index, action);
  if (action.kind != ActionKind::backward_input) put(weight, rank, index, action);
}

void Places::note_message(int rank, size_t index, const Action& action) {
  if (!communication_) {
    communication_ = true;
    for (const What what : {send_f, recv_f, send_b, recv_b}) places_[what].assign(s_.cells(), absent);
  }
  switch (action.kind) {
    case ActionKind::send_f:
      return put(send_f, rank, index, action);
    case ActionKind::recv_f:
      return put(recv_f, rank, index, action);
    case ActionKind::send_b:
      return put(send_b, rank, index, action);
    default:
      return put(recv_b, rank, index, action);
  }
}

void Places::put(What what, int rank, size_t index, const Action& action) {
  int32_t& place = places_[what][s_.cell(action.stage, action.microbatch)];
  if (place != absent) {
    refuse(s_, rank, index,
           fmt::format("{} does what step {} ({}) has done already", to_string(action), place,
                       to_string(s_.actions[rank][place])));
  }
  place = static_cast<int32_t>(index);
}

}  // namespace pptrain::schedule
