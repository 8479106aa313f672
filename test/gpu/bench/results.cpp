#include "test/gpu/bench/results.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "core/kernels/out_of_memory.h"

namespace pptrain::bench {
namespace {

std::string cell(const Json& row, const Column& column) {
  const auto found = row.find(column.key);
  if (found == row.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  return fmt::format("{:.{}f}", found->get<double>() * column.scale, column.decimals);
}

}  // namespace

void Rows::add(Json names, const std::function<void(Json& row)>& fill) {
  Json row = std::move(names);
  try {
    fill(row);
  } catch (const std::exception& error) {
    row["error"] = kernels::plain_message(error);
  }
  rows_.push_back(std::move(row));
}

void put(Json& row, const Timing& timing) {
  row["seconds"] = timing.seconds;
  row["fastest_s"] = timing.fastest;
  row["slowest_s"] = timing.slowest;
  row["host_s"] = timing.host_seconds;
  row["calls"] = timing.calls;
}

std::string table(const Json& rows, const std::vector<Column>& columns) {
  std::vector<std::vector<std::string>> lines(rows.size() + 1);
  for (const Column& column : columns) {
    size_t width = column.title.size();
    for (const Json& row : rows) width = std::max(width, cell(row, column).size());
    lines[0].push_back(fmt::format("{:<{}}", column.title, width));
    for (size_t i = 0; i < rows.size(); ++i)
      lines[i + 1].push_back(fmt::format("{:<{}}", cell(rows[i], column), width));
  }
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    text += fmt::format("  {}", fmt::join(lines[i], "  "));
    if (i > 0 && rows[i - 1].contains("error"))
      text += "  failed: " + rows[i - 1]["error"].get<std::string>();
    text += '\n';
  }
  return text;
}

}  // namespace pptrain::bench
