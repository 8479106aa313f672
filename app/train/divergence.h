// Watches the losses of a run and says so when they have left their band and stayed above it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "app/train/step_listener.h"
#include "core/config/job_config.h"
#include "core/fault/loss_watch.h"
#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::app {

// Keeps the watch's state in the run's, which checkpoints hold.
class Divergence final : public StepListener {
 public:
  Divergence(const config::TrainSection& train, checkpoint::RunState& state);

  // The state is that of a checkpoint.
  void restore();
  void settled(const StepResult& result) override;
  bool is_due(int64_t step) const override;  // the run ends here
  bool diverged() const { return watch_.diverged(); }
  std::string describe() const { return watch_.describe(); }

 private:
  fault::DivergenceWatch watch_;
  checkpoint::RunState& state_;
};

struct DivergedCheckpoints {
  std::string saved;            // the folder's name, "diverged_step_520"; "": it could not be saved
  std::string failure;          // why
  std::filesystem::path sound;  // the newest checkpoint from before the loss left its band; "": none
};

// The message of a run that diverged. `seen`: the loss and its band (Divergence::describe).
std::string describe_divergence(int64_t step, const std::string& seen, const DivergedCheckpoints& left);

}  // namespace pptrain::app
