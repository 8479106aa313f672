#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "parallel/schedule/cost/in_flight.h"
#include "parallel/schedule/render/render.h"

namespace pptrain::schedule {
namespace {

std::string number(double value) {
  return fmt::format("{:.4g}", value);
}

std::string percent(double fraction) {
  return fmt::format("{:.1f} %", 100 * fraction);
}

// "F0" where a rank has one stage, "2F0" where the stage is to be told, "0F3+3B0" for a pair.
std::string label(const Schedule& s, const Action& action) {
  if (action.kind == ActionKind::overlapped_pair) {
    return fmt::format("{}+{}", label(s, forward_of(action)), label(s, backward_of(action)));
  }
  const std::string full = to_string(action);
  return s.stages_per_rank == 1 ? full.substr(full.find_first_of("FBIW")) : full;
}

size_t digits(int value) {
  size_t count = 1;
  for (; value >= 10; value /= 10) ++count;
  return count;
}

// Of label(), without making it.
size_t label_width(const Schedule& s, const Action& action) {
  size_t width = 0;
  for_each_part(action, [&](const Action& part) {
    const size_t stage = s.stages_per_rank == 1 ? 0 : digits(part.stage);
    width += (width > 0 ? 1 : 0) + stage + 1 + digits(part.microbatch);
  });
  return width;
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
    const size_t margin = fmt::formatted_size("rank {} ", s_.ranks - 1);
    std::string text(margin, ' ');
    for (size_t c = 0; c < columns_; ++c) text += fit(fmt::to_string(c), width_);
    text = rtrim(std::move(text)) + '\n';
    for (int rank = 0; rank < s_.ranks; ++rank) {
      text += fmt::format("{:<{}}{}\n", fmt::format("rank {}", rank), margin, row(rank));
    }
    if (columns_ < column(simulation_.step_time)) {
      text += fmt::format("(the first {} of {} columns)\n", columns_, column(simulation_.step_time));
    }
    return text + fmt::format("a column is {}\n", number(unit_));
  }

 private:
  static std::string fit(std::string text, size_t width, char fill = ' ') {
    text.resize(width, fill);
    return text;
  }
  static std::string rtrim(std::string text) {
    text.resize(text.find_last_not_of(' ') + 1);
    return text;
  }

  size_t column(double time) const { return static_cast<size_t>(std::lround(time / unit_)); }

  void measure(int rank, size_t i) {
    const Action& action = s_.actions[rank][i];
    if (!is_compute(action.kind)) return;
    const Span& span = simulation_.spans[rank][i];
    const double time = span.end - span.start;
    if (time > 0 && (unit_ <= 0 || time < unit_)) unit_ = time;
    width_ = std::max(width_, label_width(s_, action) + 1);
  }

  std::string row(int rank) const {
    std::string text;
    size_t at = 0;
    for (size_t i = 0; i < s_.actions[rank].size() && at < columns_; ++i) {
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
      text += fmt::format("{}{:>{}}", i > 0 ? "  " : "", row[i], widths[i]);
    }
    text += "\n";
  }
  return text;
}

}  // namespace

std::string render_text(const Schedule& schedule, const Simulation& simulation, const TextOptions& options) {
  std::string text =
      fmt::format("{}: {} ranks, {} stages ({}), {} microbatches\n\n", schedule.name, schedule.ranks,
                  schedule.stages(), to_string(schedule.placement), schedule.microbatches);
  text += Grid(schedule, simulation, options).draw();
  text += fmt::format("\nstep time {}, bubble {}\n\n", number(simulation.step_time),
                      percent(simulation.bubble()));
  std::vector<std::vector<std::string>> rows = {{"rank", "stages", "busy", "fill", "steady", "drain",
                                                 "barrier", "bubble", "activations in flight",
                                                 "with weight operands", "receive buffers"}};
  const bool exchanges = std::ranges::any_of(
      simulation.ranks, [](const RankTime& time) { return time.wait_for_exchange > 0 || time.reducing > 0; });
  if (exchanges) rows[0].insert(rows[0].end(), {"exchange wait", "reducing"});
  const std::vector<InFlight> peaks = in_flight(schedule);
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const RankTime& time = simulation.ranks[rank];
    const InFlight& peak = peaks[rank];
    rows.push_back({fmt::to_string(rank), fmt::format("{}", fmt::join(schedule.stages_of(rank), ",")),
                    number(time.busy), number(time.fill), number(time.steady), number(time.drain),
                    number(time.barrier), percent(simulation.bubble(rank)), fmt::to_string(peak.activations),
                    fmt::to_string(peak.held), fmt::to_string(peak.receive_buffers)});
    if (exchanges)
      rows.back().insert(rows.back().end(), {number(time.wait_for_exchange), number(time.reducing)});
  }
  return text + table(rows) + "in flight: counted in microbatches of one stage\n";
}

}  // namespace pptrain::schedule
