// Losses that leave the band of those before them and stay above it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pptrain::fault {

// Where losses are expected, in nats per token.
struct LossBand {
  double median = 0;
  double deviation = 0;  // 1.4826 times the median absolute deviation, but 0.1 % of the median at least
  double limit = 0;      // above it a loss is out of the band
};

// The band of these losses, of which there is one at least, `width` deviations wide. Median and median
// absolute deviation, which up to half of the losses cannot move: Leys, Ley, Klein, Bernard and Licata,
// "Detecting outliers: Do not use standard deviation around the mean, use absolute deviation around the
// median", J. Exp. Soc. Psychol. 49 (2013). The floor is for losses that hardly differ.
LossBand loss_band(std::span<const double> losses, double width);

// Counts the steps in a row whose loss lies above the band. It sees the global loss, which has the same bits
// on every rank and every pipeline layout, so that all ranks decide alike. Only losses within the band become
// part of it: a run that diverges does not raise its own limit.
class DivergenceWatch {
 public:
  struct Options {
    int64_t steps = 0;   // in a row above the band; 0: no watch
    int64_t window = 1;  // losses of the band; before there are so many, none lies above it
    double width = 1;    // of the band, in deviations
  };
  // All that it goes on with after a resume.
  struct State {
    std::vector<double> recent;  // the last losses within the band, the oldest first
    int64_t above = 0;           // steps in a row above it
    int64_t since = 0;           // the first of them; 0 where there are none
  };

  explicit DivergenceWatch(const Options& options) : options_(options) {}

  // The loss of the next step. One that is not finite says nothing here (anomaly.h).
  void take(int64_t step, double loss);

  bool above() const { return state_.above > 0; }
  bool diverged() const { return options_.steps > 0 && state_.above >= options_.steps; }
  // "the loss lies above its band since step 480: ...": of the last step taken, where above() holds.
  std::string describe() const;

  const State& state() const { return state_; }
  // Goes on from there. What had diverged already gets as many steps again: somebody chose to go on from it.
  void restore(State state);

 private:
  Options options_;
  State state_;
  double last_ = 0;  // loss
};

}  // namespace pptrain::fault
