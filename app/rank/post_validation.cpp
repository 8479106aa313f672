#include "app/rank/post_validation.h"

#include <spdlog/fmt/fmt.h>

#include <span>
#include <vector>

namespace pptrain::app {

namespace {

// Numbers that each rank sends after the exact sum of its replica's squares. The last stage's rank sends the
// valid ones: it has summed the loss over the data ranks, and knows whether any rank of its stage was asked
// to stop or save.
enum Extra { extra_loss, extra_urgent, extras };

}  // namespace

PostValidation::PostValidation(RunContext& context, RankModel& model)
    : context_(context), model_(model), exchange_(context.mesh.along(mesh::Axis::pp)) {
  model_.keep_previous();
}

void PostValidation::start(double lr, double grad_scale, bool urgent) {
  std::vector<double> extra(extras, 0.0);
  extra[extra_urgent] = urgent || seen_urgent_ ? 1 : 0;
  if (model_.has_last_stage()) {
    extra[extra_loss] = model_.last_stage_loss();
    extra[extra_urgent] = comm::any(context_.mesh.of(mesh::Group::stage), extra[extra_urgent] > 0) ? 1 : 0;
  }
  const auto squares = model_.norm().of_replica(model_.squared_norm()).portable();
  std::vector<double> told(squares.begin(), squares.end());
  told.insert(told.end(), extra.begin(), extra.end());
  exchange_.start(told);
  model_.apply(lr, grad_scale);
  lr_ = lr;
  taken_with_ = grad_scale;
}

void PostValidation::wait(int64_t step) {
  const auto told = exchange_.wait(fmt::format("the gradient norms of step {}", step));
  std::vector<kernels::ExactSum> squares;
  for (const std::span<const double> values : told) {
    squares.emplace_back(values.first(kernels::exact_words));
    seen_urgent_ = seen_urgent_ || values.last(extras)[extra_urgent] > 0;
  }
  const auto last = std::span<const double>(told[model_.last_stage_rank()]).last(extras);
  urgent_ = urgent_ || last[extra_urgent] > 0;
  loss_ = last[extra_loss];
  norm_ = shard::GradNorm::of_stages(squares);
}

bool PostValidation::correct(const std::optional<double>& grad_scale) {
  confident_ = grad_scale == taken_with_;
  if (!confident_) {
    model_.undo();
    if (grad_scale) model_.apply(lr_, *grad_scale);
  }
  taken_with_.reset();
  return confident_;
}

}  // namespace pptrain::app
