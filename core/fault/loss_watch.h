// Two watches over the global loss and gradient norm. Both have the same bits on every rank and every
// pipeline layout, so that all ranks decide alike. One counts skipped steps (loss or gradient norm not
// finite, or no valid token), the other losses that leave their band and stay above it.
#pragma once

#include <cstdint>
#include <deque>
#include <iterator>
#include <string>
#include <vector>

namespace pptrain::fault {

// Decides whether a step counts.
class AnomalyGuard {
 public:
  // max_in_a_row: skipped steps in a row after which the run fails; 0: the first one fails it.
  explicit AnomalyGuard(int64_t max_in_a_row) : max_in_a_row_(max_in_a_row) {}

  // True if both are finite: apply the step. False: skip it. Throws Error with the last steps' figures once
  // more than max_in_a_row would have been skipped without a break. `where`: the place of a step that is not
  // finite, as far as known, for the report.
  bool accept(double loss, double grad_norm, const std::string& where = {});

  // A step without a valid token: it is skipped and counted, but is no anomaly.
  void skip_empty() { ++total_; }

  int64_t in_a_row() const { return in_a_row_; }
  int64_t total() const { return total_; }
  void restore(int64_t in_a_row, int64_t total);

 private:
  int64_t max_in_a_row_;
  int64_t in_a_row_ = 0;
  int64_t total_ = 0;
  std::deque<std::string> last_;  // steps, in words
};

// Counts the steps in a row whose loss lies above the band. Only losses within the band become part of it: a
// run that diverges does not raise its own limit.
class DivergenceWatch {
 public:
  // steps: in a row above the band; 0: no watch. window: losses of the band; before there are so many, none
  // lies above it. width: of the band, in deviations.
  DivergenceWatch(int64_t steps, int64_t window, double width)
      : steps_(steps), window_(window), width_(width) {}

  // The loss of the next step. One that is not finite says nothing here (AnomalyGuard).
  void take(int64_t step, double loss);

  bool diverged() const { return steps_ > 0 && above_ >= steps_; }
  // Would it have diverged with one more loss above the band?
  bool may_diverge_next() const {
    return steps_ > 0 && std::ssize(recent_) >= window_ && above_ + 1 >= steps_;
  }
  // "the loss lies above its band since step 480: ...": about the last step taken, if there are steps
  // above().
  std::string describe() const;

  // All that it goes on with after a resume: the last losses within the band, the oldest first; steps in a
  // row above it; the first of them, 0 if there are none.
  const std::vector<double>& recent() const { return recent_; }
  int64_t above() const { return above_; }
  int64_t since() const { return since_; }
  // Goes on from there. A run that had diverged already gets as many steps again: the user chose to go on
  // from it.
  void restore(std::vector<double> recent, int64_t above, int64_t since);

 private:
  int64_t steps_, window_;
  double width_;
  std::vector<double> recent_;
  int64_t above_ = 0, since_ = 0;
  double last_ = 0;  // loss
};

}  // namespace pptrain::fault
