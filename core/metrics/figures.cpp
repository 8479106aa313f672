#include "core/metrics/figures.h"

#include <algorithm>
#include <utility>

namespace pptrain::metrics {
namespace {

constexpr double bytes_of_gb = 1e9;

double number(int64_t value) {
  return static_cast<double>(value);
}

void add_bubble(std::vector<Figure>& figures, const Bubble& bubble) {
  figures.push_back(
      {"bubble/total", "bubble_ratio", "Idle part of the step, mean of all ranks.", bubble.total()});
  const std::pair<const char*, double> parts[] = {{"fill", bubble.fill},
                                                  {"steady", bubble.steady},
                                                  {"drain", bubble.drain},
                                                  {"barrier", bubble.barrier},
                                                  {"wait", bubble.wait}};
  for (const auto& [part, value] : parts) {
    figures.push_back({std::string("bubble/") + part, "bubble_part_ratio",
                       "Where the idle part of the step lies; wait is contained in fill, steady, drain.",
                       value, 1, "part", part});
  }
}

void add_experts(std::vector<Figure>& figures, const ExpertLoads& loads) {
  double worst = 0;
  for (const auto& [layer, rows] : loads) worst = std::max(worst, imbalance(rows));
  figures.push_back({"experts/imbalance", "expert_imbalance_max_ratio",
                     "Rows of the fullest expert by the mean, in the layer where that is worst.", worst});
  for (const auto& [layer, rows] : loads) {
    const std::string number = std::to_string(layer);
    figures.push_back({"experts/imbalance_layer_" + number, "expert_imbalance_ratio",
                       "Rows of the layer's fullest expert by the mean of its experts.", imbalance(rows), 1,
                       "layer", number});
  }
}

}  // namespace

std::vector<Figure> running_figures(const StepRecord& r) {
  std::vector<Figure> figures = {
      {"train/total_tokens", "tokens_total", "Tokens that have a target, of the run so far.",
       number(r.total_tokens)},
      {"train/skipped_steps", "skipped_steps_total",
       "Steps that were skipped: not finite, or without a valid token.", number(r.skipped_steps)},
  };
  if (r.saved_step) {
    figures.push_back({"train/checkpoint", "checkpoint_step", "Step of the newest complete checkpoint.",
                       number(*r.saved_step)});
  }
  return figures;
}

std::vector<Figure> step_figures(const StepRecord& r) {
  std::vector<Figure> figures = {
      {"train/loss", "loss_nats", "Loss per token with a target, over the global batch.", r.loss},
      {"train/grad_norm", "grad_norm", "Norm of the gradient before clipping.", r.grad_norm},
      {"train/lr", "learning_rate", "Learning rate.", r.lr},
      {"train/epoch", "epochs", "Passes over the training data.", r.epoch},
      {"train/tokens", "step_tokens", "Tokens with a target in the step.", number(r.tokens)},
      {"train/computed_tokens", "step_computed_tokens", "All tokens that the step computed.",
       number(r.computed_tokens)},
      {"train/padding_tokens", "step_padding_tokens", "Computed tokens that belong to no document.",
       number(r.padding_tokens)},
      {"speed/tokens_per_s", "tokens_per_second", "Tokens with a target a second.", r.tokens_per_s},
      {"speed/step_time_s", "step_duration_seconds", "Time of the step.", r.step_time_s},
      {"speed/data_wait_s", "data_wait_seconds", "Part of the step that rank 0 waited for data.",
       r.data_wait_s},
      {"speed/save_time_s", "save_wait_seconds", "Training stood still to save, since the step before.",
       r.save_time_s},
      {"memory/peak_gb", "memory_peak_bytes", "Peak memory of rank 0's process, or of its GPU.", r.memory_gb,
       bytes_of_gb},
  };
  if (r.mfu > 0) {
    figures.push_back({"speed/mfu", "mfu_ratio", "Model FLOP/s by the peak rate of all devices.", r.mfu});
  }
  if (r.bubble) add_bubble(figures, *r.bubble);
  if (!r.expert_loads.empty()) add_experts(figures, r.expert_loads);
  for (const auto& [source, epoch] : r.source_epochs) {
    figures.push_back({"data/epoch_" + source, "source_epochs", "Passes over the training data of a source.",
                       epoch, 1, "source", source});
  }
  return figures;
}

std::vector<Figure> eval_figures(const EvalRecord& r) {
  std::vector<Figure> figures = {
      {"eval/loss", "eval_loss_nats", "Loss per token on the validation data.", r.loss},
      {"eval/tokens", "eval_tokens", "Tokens of the evaluation.", number(r.tokens)},
      {"eval/time_s", "eval_duration_seconds", "Time of the evaluation.", r.time_s},
  };
  for (const SourceLoss& source : r.sources) {
    figures.push_back({"eval/loss_" + source.name, "eval_source_loss_nats",
                       "Loss per token on the validation data of a source.", source.loss(), 1, "source",
                       source.name});
  }
  return figures;
}

}  // namespace pptrain::metrics
