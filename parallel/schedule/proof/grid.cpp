#include "parallel/schedule/proof/grid.h"

#include <algorithm>
#include <vector>

namespace pptrain::schedule {
namespace {

constexpr size_t columns_around = 5;
constexpr int ranks_around = 8;

std::string padded(const std::string& text, size_t width) {
  return text + std::string(width > text.size() ? width - text.size() : 0, ' ');
}

}  // namespace

std::string format_grid(const Schedule& schedule, int rank, size_t index) {
  const size_t end_of_row = schedule.actions[rank].size();
  const size_t marked = std::min(index, end_of_row);
  const size_t first = marked > columns_around ? marked - columns_around : 0;
  const int first_rank = std::max(0, rank - ranks_around);
  const int last_rank = std::min(schedule.ranks - 1, rank + ranks_around);

  size_t last = marked;
  for (int r = first_rank; r <= last_rank; ++r) {
    const size_t size = schedule.actions[r].size();
    if (size > 0) last = std::max(last, std::min(marked + columns_around, size - 1));
  }
  size_t width = 0;
  std::vector<std::vector<std::string>> rows(1, {"step"});
  for (size_t column = first; column <= last; ++column)
    rows[0].push_back(std::string(1, ' ').append(std::to_string(column)));
  for (int r = first_rank; r <= last_rank; ++r) {
    auto& row = rows.emplace_back(1, "rank " + std::to_string(r));
    const auto& list = schedule.actions[r];
    for (size_t column = first; column <= last; ++column) {
      const std::string cell = column < list.size() ? to_string(list[column]) : "";
      row.push_back(r == rank && column == marked ? ">" + cell + "<" : " " + cell);
      width = std::max(width, row.back().size());
    }
  }
  const size_t margin = rows.back().front().size();
  std::string text;
  for (const auto& row : rows) {
    std::string line = padded(row[0], margin);
    for (size_t i = 1; i < row.size(); ++i) line.append(1, ' ').append(padded(row[i], width));
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace pptrain::schedule
