#include "app/train/divergence.h"

#include <spdlog/fmt/fmt.h>

namespace pptrain::app {

Divergence::Divergence(const config::TrainSection& train, checkpoint::RunState& state)
    : watch_({.steps = train.divergence_steps,
              .window = train.divergence_window,
              .width = train.divergence_band}),
      state_(state) {}

void Divergence::restore() {
  watch_.restore({state_.recent_losses, state_.losses_above, state_.above_since});
}

void Divergence::settled(const StepResult& result) {
  if (result.applied) watch_.take(result.step, result.loss);
  state_.recent_losses = watch_.state().recent;
  state_.losses_above = watch_.state().above;
  state_.above_since = watch_.state().since;
}

bool Divergence::is_due(int64_t) const {
  return diverged();
}

std::string describe_divergence(int64_t step, const std::string& seen, const DivergedCheckpoints& left) {
  const std::string saved =
      left.saved.empty()
          ? left.failure
          : fmt::format("The state of step {} is in checkpoints/{}, to be looked at", step, left.saved);
  const std::string sound =
      left.sound.empty()
          ? "No checkpoint is from before that, so the same command begins anew"
          : fmt::format("The newest checkpoint from before that is {}, from which the same command goes on",
                        left.sound.string());
  return fmt::format(
      "diverged at step {}: {}. {}; no start goes on from there by itself. {}, and meets the same again if "
      "nothing is changed: lower optimizer.lr or train.grad_clip, or take other data from there on (another "
      "run.seed with checkpoint.data = \"continue\"). If the loss was right, widen train.divergence_band or "
      "train.divergence_steps.",
      step, seen, saved, sound);
}

}  // namespace pptrain::app
