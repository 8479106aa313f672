#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "parallel/schedule/render/render.h"
#include "parallel/schedule/render/text_layout.h"

namespace pptrain::schedule {
namespace {

constexpr double row_height = 24;
constexpr double row_gap = 3;
constexpr double strip_height = 4;  // of exchanges, under the row of their rank
constexpr double left = 64;
constexpr double top = 62;
constexpr double right = 20;
constexpr double digit_width = 6.2;  // of the 10-pixel font
constexpr double box_width = 16;     // wanted for the shortest action, so that its microbatch can be read
constexpr double min_width = 720;
constexpr double max_width = 8000;

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (static_cast<unsigned char>(c) >= 0x20) {
      result += c;
    }
  }
  return result;
}

struct Colour {
  int red;
  int green;
  int blue;
};

Colour base_colour(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return {126, 170, 232};
    case ActionKind::backward:
      return {122, 196, 138};
    case ActionKind::backward_input:
      return {120, 205, 205};
    case ActionKind::head_forward:
      return {232, 160, 190};
    case ActionKind::head_backward:
      return {205, 120, 160};
    case ActionKind::unshard:
      return {150, 140, 200};
    case ActionKind::reduce_grad:
      return {214, 120, 120};
    default:
      return {240, 196, 104};
  }
}

// Darker for each further stage of a rank.
std::string colour(ActionKind kind, int chunk) {
  const Colour base = base_colour(kind);
  const double light = std::pow(0.80, chunk);
  const auto part = [&](int value) { return static_cast<int>(value * light) & 255; };
  return fmt::format("#{:02x}{:02x}{:02x}", part(base.red), part(base.green), part(base.blue));
}

class Picture {
 public:
  Picture(const Schedule& schedule, const Simulation& simulation, bool seconds)
      : s_(schedule), simulation_(simulation), seconds_(seconds) {
    if (seconds) unit_ = time_unit(simulation.step_time);
    double shortest = simulation.step_time;
    for (int rank = 0; rank < s_.ranks; ++rank) {
      for (size_t i = 0; i < s_.actions[rank].size(); ++i) {
        const Span& span = simulation_.spans[rank][i];
        if (span.end <= span.start) continue;
        for_each_part(s_.actions[rank][i], [&](const Action& part) { kinds_.insert(part.kind); });
        if (is_compute(s_.actions[rank][i].kind)) {
          shortest = std::min(shortest, span.end - span.start);
        } else {
          exchanges_ = true;
        }
      }
    }
    const double step = std::max(simulation.step_time, 1e-300);
    const double wanted = shortest > 0 ? step / shortest * box_width : min_width;
    scale_ = std::clamp(wanted, min_width, max_width) / step;
  }

  std::string draw() {
    const double width = left + simulation_.step_time * scale_ + right;
    const double bottom = top + s_.ranks * row_pitch();
    add("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.6g}\" height=\"{1:.6g}\" viewBox=\"0 0 "
        "{0:.6g} {1:.6g}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"10\">\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        std::ceil(width), bottom + 34);
    draw_head();
    for (int rank = 0; rank < s_.ranks; ++rank) draw_row(rank);
    draw_axis(bottom);
    return text_ + "</svg>\n";
  }

 private:
  double x(double time) const { return left + time * scale_; }
  double row_pitch() const { return row_height + row_gap + (exchanges_ ? 2 * strip_height + row_gap : 0); }

  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }

  void label(double at_x, double at_y, const std::string& text, std::string_view more = "") {
    add("<text x=\"{:.6g}\" y=\"{:.6g}\"{}>{}</text>\n", at_x, at_y, more, escaped(text));
  }

  void box(double from, double to, double y, double height, const std::string& fill) {
    add("<rect x=\"{:.6g}\" y=\"{:.6g}\" width=\"{:.6g}\" height=\"{:.6g}\" fill=\"{}\" stroke=\"#ffffff\" "
        "stroke-width=\"0.6\"/>\n",
        from, y, to - from, height, fill);
  }

  void draw_head() {
    label(left, 20,
          fmt::format("{}: {} ranks, {} stages, {}; {}, bubble {:.6g} %", s_.name, s_.ranks, s_.stages(),
                      s_.microbatches_text(),
                      seconds_ ? "passes " + format_seconds(simulation_.step_time)
                               : fmt::format("step {:.6g}", simulation_.step_time),
                      std::round(simulation_.bubble() * 1000) / 10),
          " font-size=\"14\" fill=\"#222222\"");
    const std::array<std::pair<ActionKind, const char*>, 8> legend = {
        {{ActionKind::forward, "F forward"},
         {ActionKind::backward, "B backward"},
         {ActionKind::backward_input, "I input gradient"},
         {ActionKind::backward_weight, "W weight gradient"},
         {ActionKind::head_forward, "S head: logits"},
         {ActionKind::head_backward, "T head: gradients"},
         {ActionKind::unshard, "UNSHARD: gathers"},
         {ActionKind::reduce_grad, "REDUCE_GRAD"}}};
    double at = left;
    for (const auto& [kind, words] : legend) {
      if (!kinds_.contains(kind)) continue;
      box(at, at + 14, 34, 14, colour(kind, 0));
      label(at + 19, 45, words, " fill=\"#444444\"");
      at += 132;
    }
    if (s_.stages_per_rank > 1) label(at, 45, "darker: the rank's later stages", " fill=\"#444444\"");
  }

  void draw_row(int rank) {
    const double y = top + rank * row_pitch();
    label(left - 8, y + 16, fmt::format("rank {}", rank), " text-anchor=\"end\" fill=\"#222222\"");
    box(x(0), x(simulation_.step_time), y, row_height, "#eeeeee");
    for (size_t i = 0; i < s_.actions[rank].size(); ++i) {
      const Action& action = s_.actions[rank][i];
      const Span& span = simulation_.spans[rank][i];
      if (!is_compute(action.kind)) {
        draw_exchange(action, span, y + row_height + 1);
        continue;
      }
      open_action(action, span);
      const double height = action.kind == ActionKind::overlapped_pair ? row_height / 2 : row_height;
      double part_y = y;
      for_each_part(action, [&](const Action& part) {
        box(x(span.start), x(span.end), part_y, height, colour(part.kind, part.stage / s_.ranks));
        microbatch(span, part_y + height / 2 + 3.5, part.microbatch);
        part_y += height;
      });
      text_ += "</g>\n";
    }
  }

  void open_action(const Action& action, const Span& span) {
    add("<g><title>{}: {:.6g} to {:.6g}{}{}</title>\n", to_string(action), span.start * unit_.per_second,
        span.end * unit_.per_second, seconds_ ? " " : "", seconds_ ? unit_.name : "");
  }

  // Gathers on the first strip, reductions on the second.
  void draw_exchange(const Action& action, const Span& span, double y) {
    if (span.end <= span.start) return;
    open_action(action, span);
    if (action.kind == ActionKind::reduce_grad) y += strip_height;
    box(x(span.start), x(span.end), y, strip_height, colour(action.kind, action.stage / s_.ranks));
    text_ += "</g>\n";
  }

  void microbatch(const Span& span, double y, int value) {
    const std::string digits = fmt::to_string(value);
    if ((span.end - span.start) * scale_ < digit_width * static_cast<double>(digits.size()) + 2) return;
    label(x((span.start + span.end) / 2), y, digits, " text-anchor=\"middle\" fill=\"#1a1a1a\"");
  }

  // About ten ticks, at 1, 2 or 5 times a power of ten.
  void draw_axis(double y) {
    const double tick = nice_interval(simulation_.step_time * unit_.per_second / 10) / unit_.per_second;
    for (int i = 0; i * tick <= simulation_.step_time * (1 + 1e-9); ++i) {
      const double at = x(i * tick);
      add("<line x1=\"{0:.6g}\" x2=\"{0:.6g}\" y1=\"{1:.6g}\" y2=\"{2:.6g}\" stroke=\"#888888\"/>\n", at, y,
          y + 5);
      label(at, y + 17, fmt::format("{:.6g}", i * tick * unit_.per_second),
            " text-anchor=\"middle\" fill=\"#444444\"");
    }
    if (seconds_) label(left - 8, y + 17, unit_.name, " text-anchor=\"end\" fill=\"#444444\"");
  }

  const Schedule& s_;
  const Simulation& simulation_;
  bool seconds_;
  TimeUnit unit_{"", 1};
  std::set<ActionKind> kinds_;  // that take time
  double scale_ = 1;            // pixels per unit of time
  bool exchanges_ = false;      // some take time
  std::string text_;
};

}  // namespace

std::string render_svg(const Schedule& schedule, const Simulation& simulation, bool seconds) {
  return Picture(schedule, simulation, seconds).draw();
}

}  // namespace pptrain::schedule
