#include "app/train/post_validation.h"

#include <spdlog/fmt/fmt.h>

#include <span>

namespace pptrain::app {

namespace {

// What each rank tells after its squared norms. Those of the last stage's rank hold for all: it has summed
// them over the replicas.
enum Extra { extra_loss, extra_tokens, extra_stop, extras };

}  // namespace

PostValidation::PostValidation(RunContext& context, RankModel& model)
    : context_(context),
      model_(model),
      exchange_(context.mesh.along(mesh::Axis::pp), counts(context, model)) {
  model_.keep_previous();
}

std::vector<size_t> PostValidation::counts(const RunContext& context, const RankModel& model) {
  std::vector<size_t> result;
  for (int rank = 0; rank < context.mesh.size(mesh::Axis::pp); ++rank) {
    result.push_back(model.norm().parameters_of(rank) + extras);
  }
  return result;
}

void PostValidation::start(const Pending& step, bool stop) {
  std::vector<double> extra(extras, 0.0);
  extra[extra_stop] = stop || seen_stop_ ? 1 : 0;
  if (model_.has_last_stage()) {
    const pipeline::LossSum own = model_.take_loss();
    extra[extra_loss] = own.loss;
    extra[extra_tokens] = static_cast<double>(own.tokens);
    extra = comm::all_reduce_sum(context_.mesh.along(mesh::Axis::dp_replicate), extra);
  }
  std::vector<double> told = model_.squared_norms();
  told.insert(told.end(), extra.begin(), extra.end());
  exchange_.start(told);
  model_.apply(step.lr, step.grad_scale);
  pending_ = step;
}

PostValidation::Totals PostValidation::wait() {
  const auto told = exchange_.wait(fmt::format("the gradient norms of step {}", pending_->step));
  std::vector<std::span<const double>> squares;
  for (const std::span<const double> values : told) {
    squares.push_back(values.first(values.size() - extras));
    seen_stop_ = seen_stop_ || values.last(extras)[extra_stop] > 0;
  }
  const auto last = std::span<const double>(told[model_.last_stage_rank()]).last(extras);
  stop_ = stop_ || last[extra_stop] > 0;
  return {.loss = {.loss = last[extra_loss], .tokens = static_cast<int64_t>(last[extra_tokens])},
          .norm = model_.norm().of_ranks(squares)};
}

bool PostValidation::correct(const std::optional<double>& grad_scale) {
  confident_ = grad_scale == pending_->grad_scale;
  if (!confident_) {
    model_.undo();
    if (grad_scale) model_.apply(pending_->lr, *grad_scale);
  }
  pending_.reset();
  return confident_;
}

}  // namespace pptrain::app
