// That no rank waits for ever; where one would, what each waits for.
#include <spdlog/fmt/fmt.h>

#include <string>

#include "parallel/schedule/proof/checks.h"
#include "parallel/schedule/proof/grid.h"

namespace pptrain::schedule {
namespace {

constexpr int most_listed = 16;  // ranks

// " for the forward of microbatch 3 by stage 1 on rank 1"; nothing where the action needs no other rank.
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

}  // namespace

void check_progress(const Places& places, ReceiveModel model) {
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
    waiting += fmt::format("\n  rank {} waits in step {} ({}){}", rank, positions[rank], to_string(action),
                           waits_for(places, action));
  }
  if (listed > most_listed) waiting += fmt::format("\n  and {} more ranks", listed - most_listed);
  refuse(s, first, positions[first], fmt::format("deadlock, no rank can go on:{}", waiting));
}

}  // namespace pptrain::schedule
