#include "app/train/memory_saver.h"

#include <spdlog/fmt/fmt.h>

#include <string>
#include <vector>

#include "app/forecast/plan_report.h"
#include "app/launch/memory_folder.h"
#include "core/base/error.h"
#include "core/config/loader.h"
#include "parallel/checkpoint/step_folders.h"
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

// Throws if this host has too little room for copies. bytes: [rank] what it writes.
void check_room(const MemoryFolder& memory, const checkpoint::Hosts& hosts, int rank,
                const std::vector<int64_t>& bytes) {
  const int own = hosts.of(rank);
  int64_t whole = 0, kept = 0;
  for (int other = 0; other < static_cast<int>(bytes.size()); ++other) {
    const int64_t of_rank = bytes[static_cast<size_t>(other)];
    whole += of_rank;
    if (hosts.of(other) == own || (hosts.several() && hosts.of(hosts.buddy(other)) == own)) kept += of_rank;
  }
  const std::optional<int64_t> free = memory.free();
  // A start may have brought the whole of a step, which goes when two newer ones are there.
  const int64_t needed = whole + (memory_copies - 1) * kept, room = free.value_or(0) + memory.held();
  if (free && needed <= room) return;
  throw Error(
      fmt::format("checkpoint.memory_seconds: copies of the state take {:.2f} GB, but {} has {:.2f} GB free",
                  static_cast<double>(needed) / 1e9, memory.path().parent_path().parent_path().string(),
                  static_cast<double>(room) / 1e9));
}

}  // namespace

std::string shortage_of_copies(comm::Communicator& disk, const RunDir& run_dir, const RankModel& model) {
  const std::vector<int64_t> bytes = comm::gather_values(disk, bytes_of(model.contents()));
  const checkpoint::Hosts& hosts = run_dir.memory_hosts();
  const auto check = [&] {
    if (hosts.is_first(disk.rank())) check_room(run_dir.memory(), hosts, disk.rank(), bytes);
  };
  return checkpoint::first_problem<Error>(disk, check).second;
}

std::string begin_copies(comm::Communicator& disk, const RunDir& run_dir) {
  const MemoryFolder& memory = run_dir.memory();
  std::string id;
  const auto [without_id, fault] = checkpoint::first_problem<Error>(disk, [&] {
    if (disk.rank() == 0) id = memory.make_run_id();
  });
  if (without_id >= 0) return fault;
  id = comm::broadcast_string(disk, id, 0);
  const auto begin = [&] {
    if (run_dir.memory_hosts().is_first(disk.rank())) memory.begin(id);
  };
  return checkpoint::first_problem<Error>(disk, begin).second;
}

MemorySaver::MemorySaver(const RunContext& context, const RunDir& run_dir, RankModel& model,
                         const checkpoint::Layout& layout)
    : context_(context),
      run_dir_(run_dir),
      model_(model),
      comm_(checkpoint::disk_communicator(context.mesh.world())),
      id_(run_dir.memory_hosts().is_first(comm_->rank()) ? run_dir.memory().run_id() : "") {
  checkpoint::SaveOptions options{.root = run_dir.memory().path(),
                                  .hosts = run_dir.memory_hosts(),
                                  .layout = layout,
                                  .job_toml = config::to_toml(job_to_save(context.plan)),
                                  .given_toml = context.plan.given,
                                  .keep_last_n = memory_copies - 1};
  // Copies of one host do not outlive a power cut either.
  if (run_dir.memory_hosts().several()) options.before_publish = run_dir.sync_metrics();
  saver_ = std::make_unique<checkpoint::Saver>(*comm_, std::move(options), /*background=*/true);
  model.before_change([this] { saver_->protect(); });
}

bool MemorySaver::wants() const {
  const std::chrono::duration<double> since = Clock::now() - saved_at_;
  return context_.root() && since.count() >= context_.job.checkpoint.memory_seconds && !saver_->busy();
}

void MemorySaver::save(const checkpoint::RunState& state) {
  model_.check_weights();
  if (!id_.empty()) {
    try {
      run_dir_.memory().keep_id(id_);
    } catch (const Error&) {
      // Then the copy cannot be written either, and says why.
    }
  }
  saver_->start(state, model_.contents());
  saved_at_ = Clock::now();
}

void MemorySaver::finish() {
  try {
    saver_->finish();
  } catch (const checkpoint::NotSaved&) {
    // The log has said so; the run has ended without it.
  }
  comm_->barrier();
}

}  // namespace pptrain::app
