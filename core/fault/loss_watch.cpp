#include "core/fault/loss_watch.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "core/base/error.h"

namespace pptrain::fault {

bool AnomalyGuard::accept(double loss, double grad_norm, const std::string& where) {
  constexpr size_t remembered = 8;
  last_.push_back(
      fmt::format("loss {:.6g}, grad norm {:.6g}{}{}", loss, grad_norm, where.empty() ? "" : "; ", where));
  if (last_.size() > remembered) last_.pop_front();
  if (std::isfinite(loss) && std::isfinite(grad_norm)) {
    in_a_row_ = 0;
    return true;
  }
  ++in_a_row_;
  ++total_;
  if (in_a_row_ <= max_in_a_row_) return false;
  std::string report;
  // Steps that are alike take one line.
  for (auto seen = last_.begin(); seen != last_.end();) {
    const auto next =
        std::find_if(seen, last_.end(), [&](const std::string& other) { return other != *seen; });
    const auto alike = next - seen;
    report += fmt::format("\n  {}{}", *seen, alike > 1 ? fmt::format(" ({} steps)", alike) : "");
    seen = next;
  }
  throw Error(fmt::format(
      "the loss or gradient norm was not finite in {} steps in a row, more than train.max_skipped_steps = {} "
      "allow; weights are those before the first of them. The last steps, oldest first:{}\n"
      "Lower optimizer.lr, lengthen lr_schedule.warmup_steps, or look at the data of these steps.",
      in_a_row_, max_in_a_row_, report));
}

void AnomalyGuard::restore(int64_t in_a_row, int64_t total) {
  in_a_row_ = in_a_row;
  total_ = total;
  last_.clear();
}

namespace {

// Median of one value at least; of an even number the mean of the two in the middle.
double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

// The band in which losses are expected, in nats per token.
struct LossBand {
  double median = 0;
  double deviation = 0;  // 1.4826 times the median absolute deviation, but 0.1 % of the median at least
  double limit = 0;      // above it a loss is out of the band
};

// The band of these losses, of which there is one at least, `width` deviations wide. Median and median
// absolute deviation, which up to half of the losses cannot move: Leys, Ley, Klein, Bernard and Licata,
// "Detecting outliers: Do not use standard deviation around the mean, use absolute deviation around the
// median", J. Exp. Soc. Psychol. 49 (2013). The floor is for losses that hardly differ.
LossBand loss_band(std::span<const double> losses, double width) {
  constexpr double of_normal_noise = 1.4826;  // standard deviation over median absolute deviation
  constexpr double least = 1e-3;
  LossBand band{.median = median_of({losses.begin(), losses.end()})};
  std::vector<double> distances;
  for (const double loss : losses) distances.push_back(std::abs(loss - band.median));
  band.deviation = std::max(of_normal_noise * median_of(std::move(distances)), least * std::abs(band.median));
  band.limit = band.median + width * band.deviation;
  return band;
}

}  // namespace

void DivergenceWatch::take(int64_t step, double loss) {
  if (steps_ == 0 || !std::isfinite(loss)) return;
  last_ = loss;
  const bool full = static_cast<int64_t>(recent_.size()) >= window_;
  if (full && loss > loss_band(recent_, width_).limit) {
    if (above_++ == 0) since_ = step;
    return;
  }
  if (full) recent_.erase(recent_.begin());
  recent_.push_back(loss);
  above_ = since_ = 0;
}

std::string DivergenceWatch::describe() const {
  const LossBand band = loss_band(recent_, width_);
  return fmt::format(
      "the loss lies above its band since step {}: {:.4f} now, the band ends at {:.4f} (median {:.4f} of the "
      "{} losses before, {:g} deviations of {:.4f})",
      since_, last_, band.limit, band.median, recent_.size(), width_, band.deviation);
}

void DivergenceWatch::restore(std::vector<double> recent, int64_t above, int64_t since) {
  if (steps_ == 0) return;
  recent_ = std::move(recent);
  above_ = above;
  since_ = since;
  const auto surplus = static_cast<int64_t>(recent_.size()) - window_;
  if (surplus > 0) recent_.erase(recent_.begin(), recent_.begin() + surplus);
  if (recent_.empty() || diverged()) above_ = since_ = 0;
}

}  // namespace pptrain::fault
