#include "parallel/schedule/proof/places.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace pptrain::schedule {
namespace {

constexpr size_t columns_around = 5;
constexpr int ranks_around = 8;

// The part of the lists that the picture shows.
struct Window {
  size_t first_column = 0;
  size_t last_column = 0;
  int first_rank = 0;
  int last_rank = 0;
};

Window window_around(const Schedule& schedule, int rank, size_t marked) {
  Window window{.first_column = marked > columns_around ? marked - columns_around : 0,
                .last_column = marked,
                .first_rank = std::max(0, rank - ranks_around),
                .last_rank = std::min(schedule.ranks - 1, rank + ranks_around)};
  for (int r = window.first_rank; r <= window.last_rank; ++r) {
    const size_t size = schedule.actions[r].size();
    if (size == 0) continue;
    window.last_column = std::max(window.last_column, std::min(marked + columns_around, size - 1));
  }
  return window;
}

// Rows of cells of one width, the first of each as wide as the margin; no blanks at the end of a line.
std::string align(const std::vector<std::vector<std::string>>& rows, size_t margin, size_t width) {
  std::string text;
  for (const auto& row : rows) {
    std::string line = fmt::format("{:<{}}", row[0], margin);
    for (size_t i = 1; i < row.size(); ++i) line += fmt::format(" {:<{}}", row[i], width);
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

// The cells around action `index` of `rank`, one row per rank and one column per place in the lists.
std::string format_grid(const Schedule& schedule, int rank, size_t index) {
  const size_t marked = std::min(index, schedule.actions[rank].size());
  const Window window = window_around(schedule, rank, marked);
  std::vector<std::vector<std::string>> rows(1, {"step"});
  for (size_t column = window.first_column; column <= window.last_column; ++column) {
    rows[0].push_back(fmt::format(" {}", column));
  }
  size_t width = 0;
  for (int r = window.first_rank; r <= window.last_rank; ++r) {
    auto& row = rows.emplace_back(1, fmt::format("rank {}", r));
    const auto& list = schedule.actions[r];
    for (size_t column = window.first_column; column <= window.last_column; ++column) {
      const std::string cell = column < list.size() ? to_string(list[column]) : "";
      row.push_back(r == rank && column == marked ? fmt::format(">{}<", cell) : ' ' + cell);
      width = std::max(width, row.back().size());
    }
  }
  return align(rows, rows.back().front().size(), width);
}

}  // namespace

void refuse(const Schedule& schedule, int rank, size_t index, std::string_view why) {
  const auto& list = schedule.actions[rank];
  throw Error(fmt::format("schedule{}{} is unsound: rank {}, step {} ({}): {}\n{}",
                          schedule.name.empty() ? "" : " ", schedule.name, rank, index,
                          index < list.size() ? to_string(list[index]) : "end of its list", why,
                          format_grid(schedule, rank, index)));
}

Places::Places(const Schedule& schedule) : s_(schedule), table_(schedule) {
  for (const What what : {forward, gradient, weight, head_forward, head_backward}) {
    if (s_.spread_head || what <= weight) places_[what].assign(s_.cells(), absent);
  }
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
  if (action.kind == ActionKind::recv_head) {  // checked as a list (validate.cpp)
    if (!s_.spread_head) refuse(s_, rank, index, "the head is not spread over the ranks");
    return;
  }
  if (is_communication(action.kind)) return note_message(rank, index, action);
  if (is_of_head(action.kind)) return note_head(rank, index, action);
  if (action.kind == ActionKind::forward) return put(forward, rank, index, action);
  if (s_.forward_only) refuse(s_, rank, index, "a forward-only schedule has no backward");
  if (action.kind != ActionKind::backward_weight) put(gradient, rank, index, action);
  if (action.kind != ActionKind::backward_input) put(weight, rank, index, action);
}

void Places::note_head(int rank, size_t index, const Action& action) {
  if (!s_.spread_head) refuse(s_, rank, index, "the head is not spread over the ranks");
  if (action.stage >= s_.ranks) {
    refuse(s_, rank, index,
           fmt::format("the head's actions are of a rank's first stage, here {}", s_.stages_of(rank)[0]));
  }
  put(action.kind == ActionKind::head_forward ? head_forward : head_backward, rank, index, action);
}

void Places::note_message(int rank, size_t index, const Action& action) {
  if (!communication_) {
    communication_ = true;
    for (const What what : {send_f, recv_f, send_b, recv_b}) places_[what].assign(s_.cells(), absent);
  }
  put(what_of(action.kind), rank, index, action);
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
