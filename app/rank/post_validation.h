// Optimizer post-validation (Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 4): a
// rank steps its optimizer without waiting for the global norm, as if there were nothing to clip or skip, and
// begins the next step. If the totals of all ranks say otherwise, it takes the step back and redoes it.
#pragma once

#include <optional>

#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "parallel/comm/host_values.h"

namespace pptrain::app {

class PostValidation {
 public:
  // From here on the model's optimizers keep what they overwrite. All functions are collective. Both
  // arguments must outlive this.
  PostValidation(RunContext& context, RankModel& model);

  // Is the next step likely to stand? A norm above the limit is seldom alone, so the step after one that did
  // not stand waits for its totals.
  bool confident() const { return confident_; }
  void set_confident(bool confident) { confident_ = confident; }

  // Sends this rank's part of the totals to all ranks of the pipeline and takes the step. Gradients must stay
  // as they are until correct(). `urgent`: this rank was asked to stop, or to save.
  void start(double lr, double grad_scale, bool urgent);
  // A step was taken and is not validated yet.
  bool pending() const { return taken_with_.has_value(); }

  // Waits until all ranks have started. step: the pending one's number.
  void wait(int64_t step);
  // Its totals, after wait(): the loss in nats, summed over all valid tokens, and the norm of the summed,
  // unscaled gradient.
  double loss() const { return loss_; }
  double norm() const { return norm_; }
  // grad_scale: the right one for the pending step, or none if the step is to be skipped. If the step was
  // taken with another one, takes it back, and redoes it unless it is to be skipped. Returns whether it
  // stood.
  bool correct(const std::optional<double>& grad_scale);

  // Was any rank asked to stop or save? The same answer on every rank, up to two steps late. Then the next
  // step's result is needed at once. When all ranks have agreed on the action after it, call answered().
  bool is_urgent() const { return urgent_; }
  void answered() { urgent_ = seen_urgent_ = false; }

 private:
  RunContext& context_;
  RankModel& model_;
  comm::Exchange exchange_;
  double lr_ = 0;                     // of the pending step
  std::optional<double> taken_with_;  // its grad_scale
  double loss_ = 0, norm_ = 0;
  bool confident_ = true;
  bool seen_urgent_ = false;  // a rank of this pipeline was asked
  bool urgent_ = false;
};

}  // namespace pptrain::app
