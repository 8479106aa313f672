#include "app/train/run_stop.h"

#include <spdlog/spdlog.h>

#include <csignal>
#include <string>

namespace pptrain::app {

// A step that post-validation may still take back is no state to save; a GPU's stream is not waited for here.
RunStop::RunStop(const RunContext& context, const fault::Shutdown& shutdown, const RunDir& run_dir,
                 RunSaver& saver, const checkpoint::RunState& state)
    : shutdown_(shutdown),
      stops_quickly_(patience_.time && !context.job.optimizer.post_validation && context.device.is_cpu()),
      under_way_(state.step + 1) {
  if (context.root())
    signals_.emplace(shutdown_, [this](const fault::StopRequest& request) { announce(request); });
  if (!stops_quickly_) return;
  start_quick_stop(context, run_dir, saver, state);
  if (context.root() && !patience_.advice.empty()) spdlog::info("{}", patience_.advice);
}

void RunStop::start_quick_stop(const RunContext& context, const RunDir& run_dir, RunSaver& saver,
                               const checkpoint::RunState& state) {
  const auto save = [this, &saver](comm::Communicator& world, const checkpoint::RunState& finished) {
    saved_quickly_ = finished.step;
    return saver.save_quickly(world, finished);
  };
  const auto leave = [this, &context, &run_dir] {
    if (context.root())
      run_dir.end({.how = "stopped", .step = saved_quickly_, .checkpoint = checkpoint_name(saved_quickly_)});
    if (context.report.take_leave) context.report.take_leave();
  };
  quick_.emplace(context.mesh.world(), shutdown_, *patience_.time, state, save, leave,
                 context.report.summons);
}

void RunStop::begin_update(int64_t step) {
  if (quick_) quick_->begin_update(step);
}

void RunStop::finished(const checkpoint::RunState& state, bool saves) {
  if (quick_) quick_->finished(state, saves);
}

void RunStop::saved() {
  if (quick_) quick_->saved();
}

void RunStop::stopping() {
  if (quick_) quick_->stopping();
}

void RunStop::announce(const fault::StopRequest& request) const {
  if (request.notice) return;  // it may mean nothing
  const std::string signal = fault::signal_name(request.signal);
  if (request.from_launcher && stops_quickly_) {
    spdlog::info("{} from the launcher: saving the last finished step", signal);
  } else {
    spdlog::info("{}: finishing step {}, then saving; {} to stop at once", signal, under_way_.load(),
                 request.signal == SIGINT ? "press again" : "send SIGINT twice");
  }
}

}  // namespace pptrain::app
