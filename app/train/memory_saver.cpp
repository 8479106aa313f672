#include "app/train/memory_saver.h"

#include <spdlog/fmt/fmt.h>

#include <string>
#include <vector>

#include "app/forecast/plan_report.h"
#include "app/launch/memory_folder.h"
#include "core/config/loader.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/host_values.h"

namespace pptrain::app {

using Clock = std::chrono::steady_clock;

namespace {

int64_t bytes_of(const std::vector<checkpoint::StageContents>& stages) {
  int64_t bytes = 0;
  for (const checkpoint::StageContents& stage : stages) {
    for (const auto& [file, tensors] : stage.files) {
      for (const checkpoint::NamedTensor& tensor : tensors)
        bytes += static_cast<int64_t>(tensor.tensor.nbytes());
    }
  }
  return bytes;
}

// Why copies cannot be kept; "" if they can.
std::string find_fault(comm::Communicator& world, const std::string& run_dir, int64_t own_bytes) {
  const bool one_host = comm::on_one_host(world);
  const double bytes = comm::all_reduce_sum(world, std::vector<double>{static_cast<double>(own_bytes)})[0];
  if (!one_host)
    return "checkpoint.memory_seconds: the ranks are on several hosts, but copies in memory are for one host";
  std::optional<int64_t> room = free_memory_for_copies();
  if (room) *room += held_by_memory_copies(run_dir);
  const double needed = memory_copies * bytes;
  if (!room || needed <= static_cast<double>(*room)) return "";
  return fmt::format(
      "checkpoint.memory_seconds: three copies of the state take {:.2f} GB, but /dev/shm has {:.2f} GB free",
      needed / 1e9, static_cast<double>(*room) / 1e9);
}

}  // namespace

MemorySaver::MemorySaver(const RunContext& context, RankModel& model, const checkpoint::Layout& layout)
    : context_(context), model_(model), comm_(checkpoint::disk_communicator(context.mesh.world())) {
  std::string fault =
      find_fault(context.mesh.world().host(), context.job.run.dir, bytes_of(model.contents()));
  fault = comm::broadcast_string(*comm_, fault, 0);
  if (!fault.empty()) throw CommonFault(fault);
  std::string folder, problem;
  if (context.root()) problem = comm::fault_of([&] { folder = begin_memory_copies(context.job.run.dir); });
  problem = comm::broadcast_string(*comm_, problem, 0);
  if (!problem.empty()) throw CommonFault(problem);
  folder = comm::broadcast_string(*comm_, folder, 0);
  checkpoint::SaveOptions options{.root = folder,
                                  .layout = layout,
                                  .job_toml = config::to_toml(job_to_save(context.plan)),
                                  .given_toml = context.plan.given,
                                  .keep_last_n = memory_copies - 1};
  saver_ = std::make_unique<checkpoint::Saver>(*comm_, std::move(options), /*background=*/true);
  model.before_change([this] { saver_->protect(); });
}

bool MemorySaver::wants() const {
  const std::chrono::duration<double> since = Clock::now() - saved_at_;
  return context_.root() && since.count() >= context_.job.checkpoint.memory_seconds && !saver_->busy();
}

void MemorySaver::save(const checkpoint::RunState& state) {
  model_.check_weights();
  saver_->start(state, model_.contents());
  saved_at_ = Clock::now();
}

void MemorySaver::remove() {
  try {
    saver_->finish();
  } catch (const checkpoint::NotSaved&) {
    // The log has said so; the run has ended without it.
  }
  comm_->barrier();
  if (context_.root()) remove_memory_copies(context_.job.run.dir);
}

}  // namespace pptrain::app
