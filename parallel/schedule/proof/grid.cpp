#include "parallel/schedule/proof/grid.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
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

}  // namespace

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

void refuse(const Schedule& schedule, int rank, size_t index, std::string_view why) {
  const auto& list = schedule.actions[rank];
  throw Error(fmt::format("schedule{}{} is unsound: rank {}, step {} ({}): {}\n{}",
                          schedule.name.empty() ? "" : " ", schedule.name, rank, index,
                          index < list.size() ? to_string(list[index]) : "end of its list", why,
                          format_grid(schedule, rank, index)));
}

}  // namespace pptrain::schedule
