#include "core/metrics/step_text.h"

#include <spdlog/fmt/fmt.h>

#include <cmath>

namespace pptrain::metrics {

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

std::string skipped_text(const StepRecord& r) {
  return r.tokens == 0 ? "SKIPPED: no valid token" : "SKIPPED: not finite";
}

std::string format_line(const StepRecord& r, int64_t last_step) {
  return fmt::format(
      "step {}/{}  loss {:.4f}  lr {:.3e}  grad_norm {:.4f}  tok/s {}  mfu {}  mem {:.2f} GB  step_time "
      "{:.3f} s{}",
      r.step, last_step, r.loss, r.lr, r.grad_norm, with_commas(std::llround(r.tokens_per_s)),
      r.mfu > 0 ? fmt::format("{:.1f}%", 100 * r.mfu) : "unknown", r.memory_gb, r.step_time_s,
      r.skipped ? "  " + skipped_text(r) : "");
}

std::string format_line(const EvalRecord& r) {
  std::string sources;
  for (const SourceLoss& source : r.sources)
    sources += fmt::format("  {} {:.4f}", source.name, source.loss());
  return fmt::format("step {}  validation loss {:.4f} nats per token  ({} tokens in {:.1f} s){}", r.step,
                     r.loss, with_commas(r.tokens), r.time_s, sources);
}

}  // namespace pptrain::metrics
