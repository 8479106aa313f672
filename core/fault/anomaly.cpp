#include "core/fault/anomaly.h"

#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <string>

#include "core/base/error.h"

namespace pptrain::fault {

bool AnomalyGuard::accept(double loss, double grad_norm, const std::string& where) {
  constexpr size_t remembered = 8;
  last_.push_back({loss, grad_norm, where});
  if (last_.size() > remembered) last_.pop_front();
  if (std::isfinite(loss) && std::isfinite(grad_norm)) {
    in_a_row_ = 0;
    return true;
  }
  ++in_a_row_;
  ++total_;
  if (in_a_row_ <= max_in_a_row_) return false;
  std::string report;
  for (const Seen& seen : last_)
    report += fmt::format("\n  loss {:.6g}, grad norm {:.6g}{}{}", seen.loss, seen.grad_norm,
                          seen.where.empty() ? "" : "; ", seen.where);
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

}  // namespace pptrain::fault
