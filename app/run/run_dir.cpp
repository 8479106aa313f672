#include "app/run/run_dir.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <system_error>
#include <thread>

#include "app/data/datasets.h"
#include "app/run/make_room.h"
#include "app/run/start_choice.h"
#include "core/base/error.h"
#include "core/base/process.h"
#include "core/config/loader.h"
#include "core/kernels/device_name.h"
#include "parallel/checkpoint/step_folders.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/mpi/mpi_communicator.h"

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {

void warn(const std::string& text) {
  spdlog::warn("{}", text);
}

void inform(const std::string& text) {
  spdlog::info("{}", text);
}

}  // namespace

RunDir::RunDir(RunContext& context)
    : context_(context), disk_(checkpoint::patient(context.mesh.world())), folder_(context.job.run.dir) {
  take_lock();
  agree();
}

void RunDir::agree() {
  std::string fault;
  if (context_.root()) fault = comm::fault_of([&] { choose(); });
  fault = comm::broadcast_string(*disk_, fault, 0);
  if (!fault.empty()) throw CommonFault(fault);
  checkpoint_ = comm::broadcast_string(*disk_, checkpoint_, 0);
  new_data_ = comm::any(*disk_, terms_.new_data);
  next_sample_ = std::stoll(comm::broadcast_string(*disk_, fmt::to_string(terms_.next_sample), 0));
}

void RunDir::pass_over(const std::string& problem) {
  if (context_.root()) {
    warn(fmt::format("the checkpoint '{}' is passed over: {}", checkpoint_, problem));
    known_[checkpoint_] = problem;
  }
  agree();
}

fs::path RunDir::begun_from() const {
  const std::string& resume = context_.job.checkpoint.resume;
  if (config::resume_of(resume) != config::Resume::named) return {};
  if (checkpoint::parse_step_folder(fs::path(resume).filename().string())) return resume;
  return choice_.from == StartFrom::named ? fs::path(checkpoint_) : fs::path{};
}

// All ranks wait together, so that none takes another one's patience for a failure.
void RunDir::take_lock() {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  bool said = false;
  const auto busy = [&] {  // rank 0
    if (lock_.try_take(folder_, warn)) return false;
    const std::chrono::seconds limit = patience(lock_.holder());
    if (Clock::now() - start > limit) throw Error(taken_message(folder_, lock_.holder()));
    if (limit > std::chrono::seconds(10) && !said) {
      spdlog::warn(
          "{} is in use by {}: waiting for up to {} s, after which the lock of a host that crashed is gone",
          folder_.string(), lock_.holder()->describe(), limit.count());
      said = true;
    }
    return true;
  };
  if (context_.root()) create_run_dir(folder_);
  while (comm::any(*disk_, context_.root() && busy())) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

void RunDir::choose() {
  const config::JobConfig& job = context_.job;
  data_ = data_fingerprint(job);
  checkpoint::take_back_replaced(folder_ / "checkpoints", warn);
  const Progress progress = find_progress(folder_ / "checkpoints", warn, known_);
  choice_ = choose_start(job, progress);
  checkpoint_.clear();
  terms_ = {};
  if (choice_.from == StartFrom::nothing) return;
  const SavedRun saved = choice_.from == StartFrom::own_checkpoint
                             ? *progress.newest
                             : read_saved_run(find_named_checkpoint(job.checkpoint.resume, warn, known_));
  terms_ = check_resume(saved, job, data_);
  checkpoint_ = saved.folder.string();
}

checkpoint::RunState RunDir::adopt(checkpoint::RunState state) const {
  if (!new_data_) return state;
  state.seed = static_cast<uint64_t>(context_.job.run.seed);
  state.next_sample = next_sample_;
  state.recent_losses.clear();  // other data have other losses
  state.losses_above = state.above_since = 0;
  return state;
}

void RunDir::begin(int64_t step) {
  begun_ = true;
  forget_run_end(folder_);
  if (!choice_.remark.empty()) warn(choice_.remark);
  for (const std::string& remark : terms_.remarks) inform(remark);
  const bool goes_on = choice_.from == StartFrom::own_checkpoint;
  make_room(folder_, goes_on ? std::optional(step) : std::nullopt, inform);
  if (!goes_on) make_room_for_file(folder_ / "tensorboard", inform);
  if (context_.job.profile.trace) make_room_for_file(folder_ / "trace.json", inform);
  keep_job(folder_ / "job.toml", config::to_toml(context_.job));
}

void RunDir::end(RunEnd end) const noexcept {
  if (!begun_) return;
  try {
    if (holder()) end.process = *holder();
    write_run_end(folder_, end);
  } catch (const std::exception& error) {
    spdlog::warn("{}", error.what());
  }
}

metrics::RunHeader RunDir::header(int64_t step, const checkpoint::Layout& layout) const {
  metrics::RunHeader header{
      .step = step,
      .checkpoint = checkpoint_,
      .time = std::chrono::system_clock::now(),
      .version = PPTRAIN_VERSION,
      .host = host_name(),
      .pid = ::getpid(),
      .command = command_line(),
      .device = context_.device.is_cpu() ? "cpu" : kernels::device_name(context_.device),
      .world_size = context_.mesh.shape().world_size(),
      .layout = layout,
      .libraries = metrics::library_versions(),
  };
  if (comm::mpi_flavor() != comm::MpiFlavor::none) header.libraries["mpi"] = comm::mpi_version();
  return header;
}

}  // namespace pptrain::app
