#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "parallel/schedule/cost/in_flight.h"
#include "parallel/schedule/render/render.h"

namespace pptrain::schedule {
namespace {

std::string number(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return text.data();
}

std::string percent(double fraction) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.1f %%", 100 * fraction);
  return text.data();
}

// "F0" where a rank has one stage, "2F0" where the stage is to be told, "0F3+3B0" for a pair.
std::string label(const Schedule& s, const Action& action) {
  std::string text;
  for_each_part(action, [&](const Action& part) {
    const std::string full = to_string(part);
    text +=
        (text.empty() ? "" : "+") + (s.stages_per_rank == 1 ? full.substr(full.find_first_of("FBIW")) : full);
  });
  return text;
}

const char* colour_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return "\033[34m";
    case ActionKind::backward:
      return "\033[32m";
    case ActionKind::backward_input:
      return "\033[36m";
    case ActionKind::backward_weight:
      return "\033[33m";
    default:
      return "\033[35m";
  }
}

// Draws the rows: column c covers the times [c, c + 1) x unit.
class Grid {
 public:
  Grid(const Schedule& schedule, const Simulation& simulation, const TextOptions& options)
      : s_(schedule), simulation_(simulation), options_(options) {
    for (int rank = 0; rank < s_.ranks; ++rank) {
      for (size_t i = 0; i < s_.actions[rank].size(); ++i) measure(rank, i);
    }
    if (unit_ <= 0) unit_ = 1;
    columns_ =
        std::min<size_t>(column(simulation.step_time), static_cast<size_t>(std::max(options.max_columns, 1)));
  }

  std::string draw() const {
    const size_t margin = ("rank " + std::to_string(s_.ranks - 1) + " ").size();
    std::string text = fit("", margin);
    for (size_t c = 0; c < columns_; ++c) text += fit(std::to_string(c), width_, ' ');
    text = rtrim(text) + "\n";
    for (int rank = 0; rank < s_.ranks; ++rank)
      text += fit("rank " + std::to_string(rank), margin) + row(rank) + "\n";
    if (columns_ < column(simulation_.step_time)) {
      text += "(the first " + std::to_string(columns_) + " of " +
              std::to_string(column(simulation_.step_time)) + " columns)\n";
    }
    return text + "a column is " + number(unit_) + "\n";
  }

 private:
  static std::string fit(std::string text, size_t width, char fill = ' ') {
    if (text.size() < width) text += std::string(width - text.size(), fill);
    return text.substr(0, width);
  }
  static std::string rtrim(const std::string& text) { return text.substr(0, text.find_last_not_of(' ') + 1); }

  size_t column(double time) const { return static_cast<size_t>(std::lround(time / unit_)); }

  void measure(int rank, size_t i) {
    const Action& action = s_.actions[rank][i];
    if (!is_compute(action.kind)) return;
    const Span& span = simulation_.spans[rank][i];
    const double time = span.end - span.start;
    if (time > 0 && (unit_ <= 0 || time < unit_)) unit_ = time;
    width_ = std::max(width_, label(s_, action).size() + 1);
  }

  std::string row(int rank) const {
    std::string text;
    size_t at = 0;
    for (size_t i = 0; i < s_.actions[rank].size(); ++i) {
      const Action& action = s_.actions[rank][i];
      if (!is_compute(action.kind)) continue;
      const Span& span = simulation_.spans[rank][i];
      const size_t first = std::min(column(span.start), columns_);
      const size_t last = std::min(std::max(column(span.end), first + 1), columns_);
      if (first < at || first >= last) continue;  // shorter than half a column, or cut off
      text += idle(first - at);
      const std::string cell =
          fit(fit(label(s_, action), (last - first) * width_ - 1, '-'), (last - first) * width_);
      text += options_.colour ? colour_of(action.kind) + cell + "\033[0m" : cell;
      at = last;
    }
    return rtrim(text + idle(columns_ - at));
  }

  std::string idle(size_t columns) const {
    std::string text;
    for (size_t i = 0; i < columns; ++i) text += fit(".", width_);
    return text;
  }

  const Schedule& s_;
  const Simulation& simulation_;
  const TextOptions& options_;
  double unit_ = 0;
  size_t width_ = 2;
  size_t columns_ = 0;
};

// Columns as wide as their widest cell, to the right.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += std::string(widths[i] - row[i].size() + (i ? 2 : 0), ' ') + row[i];
    }
    text += "\n";
  }
  return text;
}

std::string join(const std::vector<int>& numbers) {
  std::string text;
  for (const int value : numbers) {
    if (!text.empty()) text += ',';
    text += std::to_string(value);
  }
  return text;
}

}  // namespace

std::string render_text(const Schedule& schedule, const Simulation& simulation, const TextOptions& options) {
  std::string text = schedule.name + ": " + std::to_string(schedule.ranks) + " ranks, " +
                     std::to_string(schedule.stages()) + " stages (" + to_string(schedule.placement) + "), " +
                     std::to_string(schedule.microbatches) + " microbatches\n\n";
  text += Grid(schedule, simulation, options).draw() + "\n";
  text += "step time " + number(simulation.step_time) + ", bubble " + percent(simulation.bubble()) + "\n\n";
  std::vector<std::vector<std::string>> rows = {{"rank", "stages", "busy", "fill", "steady", "drain",
                                                 "barrier", "bubble", "activations in flight",
                                                 "with weight operands", "receive buffers"}};
  const std::vector<InFlight> peaks = in_flight(schedule);
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const RankTime& time = simulation.ranks[rank];
    const InFlight& peak = peaks[rank];
    rows.push_back({std::to_string(rank), join(schedule.stages_of(rank)), number(time.busy),
                    number(time.fill), number(time.steady), number(time.drain), number(time.barrier),
                    percent(simulation.bubble(rank)), std::to_string(peak.activations),
                    std::to_string(peak.held), std::to_string(peak.receive_buffers)});
  }
  return text + table(rows) + "in flight: counted in microbatches of one stage\n";
}

}  // namespace pptrain::schedule
