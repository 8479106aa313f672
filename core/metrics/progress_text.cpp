#include "core/metrics/progress_text.h"
#include "core/base/timing.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

namespace pptrain::metrics {

void TimeLeft::step(double seconds) {
  ++steps_;
  latest_.push_back(seconds);
  if (latest_.size() > kept) latest_.pop_front();
}

std::optional<double> TimeLeft::estimate(int64_t steps) const {
  if (latest_.size() < first_steps || steps < 0) return std::nullopt;
  const double typical = median({latest_.begin(), latest_.end()});
  const double left = static_cast<double>(steps) * (typical + paused_ / static_cast<double>(steps_));
  if (!std::isfinite(left) || left < 0) return std::nullopt;
  return left;
}

std::string with_commas(int64_t value) {
  std::string digits = std::to_string(value);
  const int64_t first = value < 0 ? 1 : 0;
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > first; at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

std::string duration_text(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(seconds));
  constexpr int64_t hour = 3600, day = 24 * hour;
  if (s >= day) return fmt::format("{}d {:02}h", s / day, s % day / hour);
  if (s >= hour) return fmt::format("{}:{:02}:{:02}", s / hour, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

namespace {

std::string skipped_text(const StepRecord& r) {
  return r.tokens == 0 ? "SKIPPED: no valid token" : "SKIPPED: not finite";
}

}  // namespace

double unsigned_nan(double value) {
  return std::isnan(value) ? std::abs(value) : value;
}

std::string format_line(const StepRecord& r, int64_t last_step, std::optional<double> seconds_left,
                        std::optional<int> columns) {
  // As they stand in the line, with the order in which they give way to a narrow terminal; 0: they stay.
  struct {
    std::string text;
    int gives_way;
  } fields[] = {
      {fmt::format("step {}/{}", r.step, last_step), 0},
      {fmt::format("loss {:.4f}", unsigned_nan(r.loss)), 0},
      {fmt::format("lr {:.3e}", r.lr), 4},
      {fmt::format("grad_norm {:.4f}", unsigned_nan(r.grad_norm)), 5},
      {fmt::format("tok/s {}", with_commas(std::llround(r.tokens_per_s))), 6},
      {fmt::format("mfu {}", r.mfu > 0 ? fmt::format("{:.1f}%", 100 * r.mfu) : "unknown"), 3},
      {fmt::format("mem {:.2f} GB", r.memory_gb), 2},
      {fmt::format("step_time {:.3f} s", r.step_time_s), 1},
      {seconds_left ? duration_text(*seconds_left) + " left" : "", 0},
      {r.skipped ? skipped_text(r) : "", 0},
  };
  std::string line;
  for (int dropped = 0; dropped <= 6; ++dropped) {
    line.clear();
    for (const auto& [text, gives_way] : fields) {
      if (!text.empty() && (gives_way == 0 || gives_way > dropped)) line += (line.empty() ? "" : "  ") + text;
    }
    if (!columns || line.size() <= static_cast<size_t>(std::max(0, *columns))) break;
  }
  return line;
}

std::string format_line(const EvalRecord& r) {
  std::string sources;
  for (const SourceLoss& source : r.sources)
    sources += fmt::format("  {} {:.4f}", source.name, source.loss());
  return fmt::format("step {}  validation loss {:.4f} nats per token  ({} tokens in {:.1f} s){}", r.step,
                     r.loss, with_commas(r.tokens), r.time_s, sources);
}

namespace {

constexpr std::string_view gap = "  ";
constexpr size_t shortest_bar = 10, longest_bar = 26;  // with brackets

// Place of a field in the line; the bar comes first. fields_of says what gives way to what.
enum class FieldPlace { bar, step, phase, loss, norm, lr, tokens, mfu, memory, left };

struct Field {
  FieldPlace place;
  std::string text;
};

std::string number(const char* name, double value, int digits) {
  return std::abs(value) < 1e4 ? fmt::format("{} {:.{}f}", name, value, digits)
                               : fmt::format("{} {:.2e}", name, value);
}

// The most important first. The bar's text is what it takes at least.
std::vector<Field> fields_of(const Progress& p) {
  std::vector<Field> fields;
  const int64_t step = p.latest ? p.latest->step : p.first_step;
  fields.push_back({FieldPlace::step, fmt::format("step {}/{}", step, p.last_step)});
  if (!p.phase.empty()) fields.push_back({FieldPlace::phase, p.phase});
  if (p.latest) {
    fields.push_back(
        {FieldPlace::loss, p.latest->skipped ? skipped_text(*p.latest) : number("loss", p.latest->loss, 4)});
  }
  if (p.seconds_left) fields.push_back({FieldPlace::left, duration_text(*p.seconds_left) + " left"});
  if (p.latest) {
    fields.push_back({FieldPlace::tokens, with_commas(std::llround(p.latest->tokens_per_s)) + " tok/s"});
  }
  fields.push_back({FieldPlace::bar, std::string(shortest_bar, ' ')});
  if (p.latest) {
    fields.push_back({FieldPlace::norm, number("norm", p.latest->grad_norm, 3)});
    fields.push_back({FieldPlace::lr, fmt::format("lr {:.2e}", p.latest->lr)});
    if (p.latest->mfu > 0)
      fields.push_back({FieldPlace::mfu, fmt::format("mfu {:.1f}%", 100 * p.latest->mfu)});
    fields.push_back({FieldPlace::memory, fmt::format("mem {:.2f} GB", p.latest->memory_gb)});
  }
  return fields;
}

// Fields that fit into `room`, up to the first that does not: the choice must not change with every digit of
// theirs. Returns the room that is left.
size_t fit(std::vector<Field>& fields, size_t room) {
  size_t kept = 0;
  for (; kept < fields.size(); ++kept) {
    const size_t width = fields[kept].text.size() + (kept > 0 ? gap.size() : 0);
    if (width > room) break;
    room -= width;
  }
  fields.resize(kept);
  return room;
}

std::string bar(const Progress& p, size_t width) {
  const int64_t inside = static_cast<int64_t>(width) - 2;
  const int64_t total = std::max<int64_t>(1, p.last_step - p.first_step);
  const int64_t done = p.latest ? p.latest->step - p.first_step : 0;
  const auto share = static_cast<double>(done) / static_cast<double>(total);
  const int64_t filled =
      std::clamp<int64_t>(static_cast<int64_t>(static_cast<double>(inside) * share), 0, inside);
  return '[' + std::string(static_cast<size_t>(filled), '#') +
         std::string(static_cast<size_t>(inside - filled), '-') + ']';
}

std::string colored(const Field& field, const Progress& p) {
  const char* code = nullptr;
  if (field.place == FieldPlace::bar) code = "\x1b[36m";    // cyan
  if (field.place == FieldPlace::phase) code = "\x1b[33m";  // yellow
  if (field.place == FieldPlace::loss && p.latest && p.latest->skipped)
    code = "\x1b[31m\x1b[1m";  // red, bold
  return code == nullptr ? field.text : code + field.text + "\x1b[m";
}

}  // namespace

std::string progress_text(const Progress& progress, int columns, bool color) {
  if (columns < 2) return "";
  const auto width = static_cast<size_t>(columns) - 1;
  std::vector<Field> fields = fields_of(progress);
  const std::string step = fields.front().text;
  const size_t left = fit(fields, width);
  if (fields.empty()) return step.substr(0, width);
  for (Field& field : fields) {
    if (field.place == FieldPlace::bar)
      field.text = bar(progress, std::min(shortest_bar + left, longest_bar));
  }
  std::ranges::stable_sort(fields, {}, &Field::place);
  std::string line;
  for (const Field& field : fields) {
    if (!line.empty()) line += gap;
    line += color ? colored(field, progress) : field.text;
  }
  return line;
}

}  // namespace pptrain::metrics
