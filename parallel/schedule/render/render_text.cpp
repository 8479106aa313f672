#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "parallel/schedule/render/render.h"
#include "parallel/schedule/render/text_layout.h"

namespace pptrain::schedule {
namespace {

// "F0" if a rank has one stage, "2F0" if the stage must be told, "0F3+3B0" for a pair.
std::string label(const Schedule& s, const Action& action) {
  if (action.kind == ActionKind::overlapped_pair) {
    return fmt::format("{}+{}", label(s, forward_of(action)), label(s, backward_of(action)));
  }
  const std::string full = to_string(action);
  return s.stages_per_rank == 1 ? full.substr(full.find_first_of("FBIWST")) : full;
}

// The width of label(), without making it.
size_t label_width(const Schedule& s, const Action& action) {
  size_t width = 0;
  for_each_part(action, [&](const Action& part) {
    const size_t stage = s.stages_per_rank == 1 ? 0 : fmt::formatted_size("{}", part.stage);
    width += (width > 0 ? 1 : 0) + stage + 1 + fmt::formatted_size("{}", part.microbatch);
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
    case ActionKind::head_forward:
    case ActionKind::head_backward:
      return "\033[31m";
    default:
      return "\033[35m";
  }
}

// Passes that take the same time: those of a kind on a stage, or a pair on its two.
using PassKind = std::tuple<ActionKind, int, int>;

PassKind kind_of(const Action& action) {
  return {action.kind, action.stage, action.backward_stage};
}

// Simulates the schedule again, with times that are whole numbers of characters: passes that take the same
// time then are equally wide, and none is drawn before what it waits for.
class Grid {
 public:
  Grid(const Schedule& schedule, const Costs& costs, const TextOptions& options)
      : s_(schedule), options_(options), simulation_(simulate(schedule, costs)) {
    measure();
    drawn_ = simulate(s_, in_characters(costs));
    length_ = static_cast<size_t>(std::lround(std::ceil(drawn_.step_time - 1e-9)));
    character_ = simulation_.step_time / std::max(drawn_.step_time, 1.0);
    margin_ = std::max(fmt::formatted_size("rank {} ", s_.ranks - 1), size_t{5});
  }

  std::string draw() const {
    const auto width = static_cast<size_t>(std::max(options_.width, 40));
    const size_t room = std::max((width - margin_) / cell_, size_t{1}) * cell_;
    const size_t shown = std::min(length_, room * static_cast<size_t>(std::max(options_.bands, 1)));
    std::vector<Row> rows;
    for (int rank = 0; rank < s_.ranks; ++rank) rows.push_back(row(rank, shown));
    std::string text;
    for (size_t begin = 0; begin < shown; begin += room) {
      const size_t end = std::min(begin + room, shown);
      text += begin > 0 ? "\n" : "";
      text += ruler(begin, end);
      for (int rank = 0; rank < s_.ranks; ++rank) text += band(rows[rank], rank, begin, end);
    }
    if (shown < length_)
      text += fmt::format("(up to {} of {})\n", time(static_cast<double>(shown) * character_),
                          time(simulation_.step_time));
    return text;
  }

 private:
  struct Row {
    std::string text;
    std::vector<const Action*> actions;  // of each character; null if the rank is idle
  };

  static std::string rtrim(std::string text) {
    text.resize(text.find_last_not_of(' ') + 1);
    return text;
  }

  std::string time(double value) const {
    return options_.seconds ? format_seconds(value) : fmt::format("{:.4g}", value);
  }

  // Mean times of the passes, and how long a character is: such that the shortest pass has room for its
  // label, unless it is much shorter than most.
  void measure() {
    struct Sum {
      double time = 0;
      int count = 0;
      Action widest;  // of the largest microbatch
    };
    // A list has millions of passes: those that are no pairs are looked up without the map.
    constexpr size_t kinds = static_cast<size_t>(ActionKind::head_backward) + 1;
    std::vector<Sum> singles(static_cast<size_t>(s_.stages()) * kinds);
    std::map<PassKind, Sum> sums;
    for (int rank = 0; rank < s_.ranks; ++rank) {
      for (size_t i = 0; i < s_.actions[rank].size(); ++i) {
        const Action& action = s_.actions[rank][i];
        if (!is_compute(action.kind)) continue;
        Sum& sum =
            action.kind == ActionKind::overlapped_pair
                ? sums[kind_of(action)]
                : singles[static_cast<size_t>(action.stage) * kinds + static_cast<size_t>(action.kind)];
        sum.time += simulation_.spans[rank][i].end - simulation_.spans[rank][i].start;
        ++sum.count;
        if (action.kind == ActionKind::overlapped_pair) {
          cell_ = std::max(cell_, label_width(s_, action) + 1);
        } else if (action.microbatch >= sum.widest.microbatch) {
          sum.widest = action;
        }
      }
    }
    for (const Sum& sum : singles) {
      if (sum.count == 0) continue;
      cell_ = std::max(cell_, label_width(s_, sum.widest) + 1);
      sums[kind_of(sum.widest)] = sum;
    }
    std::vector<double> times;
    for (const auto& [kind, sum] : sums) {
      means_[kind] = sum.time / sum.count;
      if (means_[kind] > 0) times.push_back(means_[kind]);
    }
    std::ranges::sort(times);
    const auto cell = static_cast<double>(cell_);
    if (!times.empty()) unit_ = std::max(times.front() / cell, times[times.size() / 2] / (3 * cell));
  }

  double characters(double time) const { return std::max(1.0, std::round(time / unit_)); }

  double mean(ActionKind kind, int stage) const {
    const auto found = means_.find(PassKind(kind, stage, -1));
    return found == means_.end() ? 0 : characters(found->second);
  }

  Costs in_characters(const Costs& costs) const {
    Costs drawn{.stages = {}, .latency = {}};
    for (int stage = 0; stage < s_.stages(); ++stage) {
      drawn.stages.push_back(
          {.time = PerPass<double>::each([&](ActionKind pass) { return mean(pass, stage); })});
    }
    drawn.head_latency = std::round(costs.head_latency / unit_);
    // A pair takes the sum of its halves, which have no other times if all passes of a stage are in pairs.
    for (const auto& [kind, time] : means_) {
      const auto& [what, stage, backward_stage] = kind;
      if (what != ActionKind::overlapped_pair) continue;
      fill_pair(drawn, costs, stage, backward_stage);
    }
    for (const double latency : costs.latency) drawn.latency.push_back(std::round(latency / unit_));
    return drawn;
  }

  void fill_pair(Costs& drawn, const Costs& costs, int stage, int backward_stage) const {
    const auto fill = [&](int of, ActionKind pass) {
      double& time = drawn.stages[static_cast<size_t>(of)].time.of(pass);
      if (time == 0) time = characters(one_for(costs.stages, of).time.of(pass));
    };
    fill(stage, ActionKind::forward);
    fill(backward_stage, ActionKind::backward);
    fill(backward_stage, ActionKind::backward_input);
  }

  // The first `shown` characters of a rank.
  Row row(int rank, size_t shown) const {
    Row row{.text = std::string(shown, ' '), .actions = std::vector<const Action*>(shown, nullptr)};
    size_t at = 0;
    for (size_t i = 0; i < s_.actions[rank].size() && at < shown; ++i) {
      const Action& action = s_.actions[rank][i];
      if (!is_compute(action.kind)) continue;
      const Span& span = drawn_.spans[rank][i];
      const auto first = static_cast<size_t>(std::lround(span.start));
      const size_t last = std::min(static_cast<size_t>(std::lround(span.end)), length_);
      idle(row.text, at, std::min(first, shown));
      for (size_t c = first; c < std::min(last, shown); ++c) row.actions[c] = &action;
      const std::string name = label(s_, action);
      const size_t end = last - first == 1 ? last : last - 1;  // a space to the next, if there is room
      for (size_t c = first; c < std::min(end, shown); ++c)
        row.text[c] = c - first < name.size() ? name[c - first] : '-';
      at = std::max(at, last);
    }
    idle(row.text, at, shown);
    return row;
  }

  // A dot every cell.
  void idle(std::string& text, size_t begin, size_t end) const {
    for (size_t c = begin; c < end; c += cell_) text[c] = '.';
  }

  std::string band(const Row& row, int rank, size_t begin, size_t end) const {
    const std::string name = fmt::format("{:<{}}", fmt::format("rank {}", rank), margin_);
    if (!options_.colour) return rtrim(name + row.text.substr(begin, end - begin)) + '\n';
    std::string text = name;
    for (size_t c = begin; c < end;) {
      const Action* const action = row.actions[c];
      const size_t first = c;
      while (c < end && row.actions[c] == action) ++c;
      const std::string part = row.text.substr(first, c - first);
      text += action ? colour_of(action->kind) + part + "\033[0m" : part;
    }
    return text + '\n';
  }

  // Times over the first character that begins at or after them.
  std::string ruler(size_t begin, size_t end) const {
    constexpr size_t least_distance = 10;  // characters between two times
    const TimeUnit unit = options_.seconds ? time_unit(simulation_.step_time) : TimeUnit{"time", 1};
    const double each = character_ * unit.per_second;
    std::string text = fmt::format("{:<{}}", unit.name, margin_);
    text.resize(margin_ + end - begin, ' ');
    if (each <= 0) return rtrim(text) + '\n';
    const double interval = nice_interval(each * least_distance);
    for (int64_t i = 0;; ++i) {
      const auto at = static_cast<size_t>(std::lround(static_cast<double>(i) * interval / each));
      if (at >= end) break;
      const std::string number = fmt::format("{:.6g}", static_cast<double>(i) * interval);
      if (at >= begin && at + number.size() <= end) text.replace(margin_ + at - begin, number.size(), number);
    }
    return rtrim(text) + '\n';
  }

  const Schedule& s_;
  const TextOptions& options_;
  Simulation simulation_;  // with the costs given
  Simulation drawn_;       // in characters
  std::map<PassKind, double> means_;
  double unit_ = 1;       // time of a character, by which passes are made whole numbers of them
  size_t cell_ = 2;       // characters of the widest label, and a space
  size_t length_ = 0;     // characters of the step
  double character_ = 0;  // time of one of these, on the mean
  size_t margin_ = 0;
};

}  // namespace

std::string render_text(const Schedule& compute, const Costs& costs, const TextOptions& options) {
  return Grid(compute, costs, options).draw();
}

}  // namespace pptrain::schedule
