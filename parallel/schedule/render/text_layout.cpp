#include "parallel/schedule/render/text_layout.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

namespace pptrain::schedule {
namespace {

std::string three_digits(double value) {
  return value >= 99.95   ? fmt::format("{:.0f}", value)
         : value >= 9.995 ? fmt::format("{:.1f}", value)
                          : fmt::format("{:.2f}", value);
}

// One line, without its end.
std::string wrapped_line(std::string_view line, size_t width, size_t indent) {
  std::string out, margin;
  while (line.size() + margin.size() > width) {
    const size_t room = width - margin.size();
    size_t space = line.rfind(' ', room);
    const bool blank = space == std::string_view::npos || line.find_first_not_of(' ') >= space;
    if (blank) space = line.find(' ', line.find_first_not_of(' '));
    if (space == std::string_view::npos) break;
    out += margin + std::string(line.substr(0, space)) + '\n';
    line.remove_prefix(std::min(line.find_first_not_of(' ', space), line.size()));
    margin.assign(indent, ' ');
  }
  return out + margin + std::string(line);
}

}  // namespace

TimeUnit time_unit(double longest) {
  if (longest >= 1) return {"s", 1};
  if (longest >= 1e-3) return {"ms", 1e3};
  return longest >= 1e-6 || longest <= 0 ? TimeUnit{"us", 1e6} : TimeUnit{"ns", 1e9};
}

std::string format_seconds(double seconds) {
  const TimeUnit unit = time_unit(seconds);
  return fmt::format("{} {}", three_digits(seconds * unit.per_second), unit.name);
}

std::string with_commas(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

double nice_interval(double least) {
  const double safe = std::max(least, 1e-300);
  const double power = std::pow(10, std::floor(std::log10(safe)));
  const double ratio = safe / power;
  return power * (ratio > 5 ? 10 : ratio > 2 ? 5 : ratio > 1 ? 2 : 1);
}

std::string table(const std::vector<std::vector<std::string>>& rows, size_t left) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += i > 0 ? "  " : "";
      line += i < left ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("{:>{}}", row[i], widths[i]);
    }
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string wrapped(std::string_view text, size_t width, size_t indent) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    out += wrapped_line(text.substr(0, end), width, indent);
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

}  // namespace pptrain::schedule
