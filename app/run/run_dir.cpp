#include "app/run/run_dir.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <ranges>
#include <sstream>
#include <system_error>
#include <thread>
#include <vector>

#include "app/data/datasets.h"
#include "app/launch/launcher_patience.h"
#include "app/plan/run_files.h"
#include "app/run/fork.h"
#include "app/run/pace.h"
#include "core/base/error.h"
#include "core/base/process.h"
#include "core/config/loader.h"
#include "core/io/atomic_file.h"
#include "core/io/files.h"
#include "core/io/paths.h"
#include "core/kernels/device_name.h"
#include "core/metrics/metrics_file.h"
#include "parallel/checkpoint/host_copies.h"
#include "parallel/checkpoint/retention.h"
#include "parallel/checkpoint/step_folders.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/host_values.h"
#include "parallel/comm/mpi/mpi_communicator.h"
#include "parallel/schedule/render/csv.h"

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {

constexpr const char* starts_name = "starts";  // under an agent that restarts
constexpr int64_t most_futile_starts = 3;

void warn(const std::string& text) {
  spdlog::warn("{}", text);
}

void inform(const std::string& text) {
  spdlog::info("{}", text);
}

void create(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(fmt::format("run.dir: cannot create {}: {}", folder.string(), error.message()));
}

bool holds(const fs::path& file, const std::string& text) {
  return io::is_there(file) && io::read_small_file(file, std::numeric_limits<size_t>::max()) == text;
}

void move(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) {
    throw Error(fmt::format("cannot move {} of an earlier run to {}: {}", from.string(), to.string(),
                            error.message()));
  }
}

// A free name next to the folder itself if `root` is a link to it: a rename stays within one file system.
fs::path aside_folder(const fs::path& root) {
  std::error_code error;
  const fs::path real = fs::is_symlink(root, error) ? fs::canonical(root, error) : root;
  return io::first_free(error ? root : real);
}

void set_aside_checkpoints(const fs::path& root, std::optional<int64_t> kept, const Report& report) {
  checkpoint::StepFolders moving = checkpoint::list_step_folders(root);
  if (kept) std::erase_if(moving, [&](const auto& folder) { return folder.first <= *kept; });
  if (moving.empty()) return;
  const fs::path aside = aside_folder(root);
  create(aside);
  for (const auto& [step, folder] : std::views::reverse(moving))  // the highest step last
    move(folder, aside / folder.filename());
  const fs::path latest = root / checkpoint::latest_name, best = root / checkpoint::best_name;
  if (!kept && io::is_there(latest)) move(latest, aside / checkpoint::latest_name);
  const std::string best_one = checkpoint::name_in(best);
  if (io::is_there(best) && (best_one.empty() || !io::is_there(root / best_one)))
    move(best, aside / checkpoint::best_name);
  io::sync_folder(aside);
  io::sync_folder(root);
  report(fmt::format("an earlier run left {} checkpoint{} {}: moved to {}", moving.size(),
                     moving.size() == 1 ? "" : "s", kept ? fmt::format("after step {}", *kept) : "here",
                     aside.string()));
}

}  // namespace

RunDir::RunDir(RunContext& context)
    : context_(context),
      disk_(checkpoint::disk_communicator(context.mesh.world())),
      folder_(context.job.run.dir),
      memory_(folder_, context.memory),
      memory_hosts_(comm::host_numbers(*disk_, memory_.place())) {
  take_lock();
  agree();
}

// torchrun would start a run that fails at the same step again and again. The file counts the starts of one
// agent, with the last step that the ones before had made.
void RunDir::count_start() const {
  if (final_exit(exit_failed) == exit_failed) return;
  struct {
    std::string agent;
    int64_t starts = 0, reached = 0;
  } before;
  const fs::path file = folder_ / starts_name;
  if (io::is_there(file))
    std::istringstream(io::read_small_file(file, 512)) >> before.agent >> before.starts >> before.reached;
  const std::string agent = fmt::format("{}:{}", host_name(), ::getppid());
  const std::vector<metrics::StepRecord> steps =
      metrics::read_metrics_tail(folder_ / "metrics.jsonl", /*steps=*/1).steps;
  const int64_t reached = steps.empty() ? 0 : steps.back().step;
  const int64_t futile = agent != before.agent || reached > before.reached ? 0 : before.starts;
  if (futile < most_futile_starts)
    return io::write_file_atomically(file, fmt::format("{} {} {}\n", agent, futile + 1, reached));
  const std::string words = read_last_words(folder_);
  throw UsageError(
      fmt::format("run.dir: {} starts in {} made no step after step {}, so no other one is tried{}{}", futile,
                  folder_.string(), reached, words.empty() ? "" : ". The last words of a rank: ", words));
}

std::function<void()> RunDir::sync_metrics() const {
  return [file = folder_ / "metrics.jsonl"] {
    try {
      io::sync_file(file);
    } catch (const Error& error) {  // which must not keep the state from being saved
      spdlog::debug("{}", error.what());
    }
  };
}

std::optional<int64_t> RunDir::saved_until(int64_t step) const {
  if (is_from_disk()) return step;
  const checkpoint::StepFolders saved = checkpoint::list_step_folders(folder_ / "checkpoints");
  const auto newest = saved.lower_bound(step);  // the highest step comes first
  return newest == saved.end() ? std::nullopt : std::optional(newest->first);
}

void RunDir::remove_copies() const {
  if (memory_hosts_.is_first(context_.mesh.rank())) memory_.remove();
}

bool RunDir::has_copy_before(int64_t step) const {
  const checkpoint::StepFolders copies = checkpoint::list_step_folders(memory_.path());
  return memory_.holds_copies() && !copies.empty() && copies.rbegin()->first < step;
}

void RunDir::remove_copies_after(int64_t step) const {
  if (!memory_hosts_.is_first(context_.mesh.rank())) return;
  if (step == 0) return memory_.remove();
  for (const auto& [other, folder] : checkpoint::list_step_folders(memory_.path())) {
    std::error_code ignored;
    if (other > step) fs::remove_all(folder, ignored);
  }
}

void RunDir::bring_copies() {
  if (!memory_hosts_.several()) return;
  const std::string id = comm::broadcast_string(*disk_, context_.root() ? memory_.run_id() : "", 0);
  if (id.empty()) return;
  checkpoint::CopiesWanted wanted;
  const auto [failing, problem] = checkpoint::first_problem<Error>(*disk_, [&] {
    if (memory_hosts_.is_first(disk_->rank())) {
      memory_.begin(id);
      checkpoint::remove_temporaries(memory_.path());
    }
    if (!context_.root()) return;
    checkpoint::KnownProblems known = known_;
    const SavedProgress saved = find_progress(
        folder_ / "checkpoints", [](const std::string&) {}, known);
    if (saved.newest) wanted.newer_than = saved.newest->step;
    for (const auto& [step, folder] : checkpoint::list_step_folders(memory_.path())) {
      if (known_.contains(folder)) wanted.known_bad.push_back(step);
    }
  });
  if (failing >= 0 && context_.root()) warn(problem);
  if (failing >= 0) return;
  const std::string remark = checkpoint::complete_newest(*disk_, memory_hosts_, memory_.path(), wanted);
  if (!remark.empty() && context_.root()) inform(remark);
}

void RunDir::agree() {
  bring_copies();
  std::string fault;
  std::string own = "[]", origins = "[]";  // texts of rollbacks
  const auto choose_with_rollbacks = [&] {
    choose();
    own = read_rollbacks(folder_);
    if (start_.from == StartFrom::named)
      origins = read_rollbacks(fs::weakly_canonical(start_.checkpoint).parent_path().parent_path());
  };
  if (context_.root()) fault = comm::fault_of(choose_with_rollbacks);
  fault = comm::broadcast_string(*disk_, fault, 0);
  if (!fault.empty()) throw CommonFault(fault);
  const bool in_memory = comm::any(*disk_, context_.root() && !is_from_disk());
  start_.checkpoint = comm::broadcast_string(*disk_, start_.checkpoint, 0);
  if (in_memory) start_.checkpoint = memory_.path() / fs::path(start_.checkpoint).filename();
  rollbacks_ = parse_rollbacks(comm::broadcast_string(*disk_, own, 0));
  origins_rollbacks_ = parse_rollbacks(comm::broadcast_string(*disk_, origins, 0));
  goes_on_ = comm::any(*disk_, context_.root() && start_.from == StartFrom::own_checkpoint);
  start_.terms.new_data = comm::any(*disk_, context_.root() && start_.terms.new_data);
  start_.terms.next_sample =
      std::stoll(comm::broadcast_string(*disk_, fmt::to_string(start_.terms.next_sample), 0));
}

void RunDir::pass_over(const std::string& problem) {
  if (context_.root()) {
    warn(fmt::format("the checkpoint '{}' is passed over: {}", start_.checkpoint, problem));
    known_[start_.checkpoint] = problem;
  }
  agree();
}

fs::path RunDir::begun_from() const {
  const std::string& resume = context_.job.checkpoint.resume;
  if (config::resume_of(resume) != config::Resume::named) return {};
  if (checkpoint::parse_step_folder(fs::path(resume).filename().string())) return resume;
  return start_.from == StartFrom::named ? fs::path(start_.checkpoint) : fs::path{};
}

// All ranks wait together, so that none mistakes another one's waiting for a failure.
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
  if (context_.root()) create(folder_);
  while (comm::any(*disk_, context_.root() && busy())) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

void RunDir::choose() {
  const config::JobConfig& job = context_.job;
  if (start_.checkpoint.empty() && !context_.goes_back) count_start();
  data_ = data_fingerprint(job);
  base_ = base_of(job);
  checkpoint::take_back_replaced(folder_ / "checkpoints", warn);
  start_ = find_start(job, data_, base_, memory_, warn, known_);
}

checkpoint::RunState RunDir::adopt(checkpoint::RunState state) const {
  if (!start_.terms.new_data) {
    state.next_sample = std::max(first_sample(rollbacks_, state), first_sample(origins_rollbacks_, state));
    return state;
  }
  state.seed = static_cast<uint64_t>(context_.job.run.seed);
  state.next_sample = start_.terms.next_sample;
  // Those of the new order, which has no checkpoint yet.
  if (context_.goes_back && !rollbacks_.empty())
    state.next_sample = std::max(state.next_sample, rollbacks_.back().skip_to);
  state.recent_losses.clear();  // other data have other losses
  state.losses_above = state.above_since = 0;
  return state;
}

void RunDir::begin(int64_t step) {
  begun_ = true;
  forget_run_end(folder_);
  checkpoint::remove_temporaries(folder_);  // of processes that were killed as they wrote
  if (!start_.remark.empty()) warn(start_.remark);
  for (const std::string& remark : start_.terms.remarks) inform(remark);
  const bool goes_on = start_.from == StartFrom::own_checkpoint;
  make_room(folder_, goes_on ? std::optional(step) : std::nullopt, inform);
  if (!goes_on) {
    make_room_for_file(folder_ / "tensorboard", inform);
    make_room_for_file(folder_ / fork_name, inform);  // a new model is no fork
  }
  std::error_code ignored;
  fs::remove(folder_ / pace_name, ignored);  // of an earlier start
  if (!goes_on || (start_.terms.new_data && !context_.goes_back)) {
    make_room_for_file(folder_ / rollbacks_name, inform);
    rollbacks_.clear();
  }
  if (!goes_on || context_.job.profile.trace) make_room_for_file(folder_ / "trace.json", inform);
  write_job();
}

// Without resolved.toml a start chooses anew. So resolved.toml is written last, and an outdated one goes
// first.
void RunDir::write_job() const {
  config::JobConfig resolved = job_to_save(context_.plan);
  std::string& schedule = resolved.distributed.pp_schedule;
  std::error_code none;
  if (context_.plan.keeps_schedule() || fs::equivalent(schedule, kept_schedule(context_.job), none))
    schedule = schedule_name;  // the folder may be moved
  const std::string text = config::to_toml(resolved);
  if (!holds(folder_ / resolved_name, text) || !holds(folder_ / job_name, context_.plan.given))
    set_aside_once(folder_ / resolved_name);
  if (context_.plan.keeps_schedule())
    keep_job(kept_schedule(context_.job), schedule::write_csv(context_.plan.compute));
  keep_job(folder_ / job_name, context_.plan.given);
  keep_job(folder_ / resolved_name, text);
}

void RunDir::make_anew(int64_t step) {
  const std::string gone =
      fmt::format("run.dir: {} was deleted or moved while the run went on", folder_.string());
  const auto another = [&] {
    return Error(gone + ", and another run has used the folder since: nothing is saved there");
  };
  if (io::is_there(folder_ / "lock") || io::is_there(folder_ / "metrics.jsonl")) throw another();
  create(folder_);
  if (!lock_.try_take(folder_, warn)) throw another();
  start_.remark.clear();
  start_.terms.remarks.clear();
  start_.from = StartFrom::own_checkpoint;  // a checkpoint that is being saved stays
  begin(step);
}

void RunDir::end(RunEnd end) const noexcept {
  if (!begun_ || !is_there()) return;
  try {
    if (holder()) end.process = *holder();
    write_run_end(folder_, end);
    std::error_code ignored;
    if (end.how != RunPhase::failed) fs::remove(folder_ / starts_name, ignored);
  } catch (const std::exception& error) {
    spdlog::warn("{}", error.what());
  }
}

void RunDir::end_killed_run(int64_t step) {
  if (start_.from != StartFrom::own_checkpoint || !is_from_disk()) return;
  const auto ended = read_run_end(folder_);
  if (ended && (ended->how != RunPhase::failed || !ended->checkpoint.empty())) return;
  checkpoint::name_latest(folder_ / "checkpoints");
  begun_ = true;
  const std::string name = fs::path(start_.checkpoint).filename().string();
  end({.how = RunPhase::finished, .step = step, .checkpoint = name});
}

metrics::RunHeader RunDir::header(int64_t step, const checkpoint::Layout& layout) const {
  metrics::RunHeader header{
      .step = step,
      .checkpoint = start_.checkpoint,
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

void make_room(const fs::path& folder, std::optional<int64_t> kept, const Report& report) {
  create(folder / "checkpoints");
  set_aside_checkpoints(folder / "checkpoints", kept, report);
  checkpoint::name_latest(folder / "checkpoints");
  const fs::path metrics = folder / "metrics.jsonl";
  if (kept) {
    metrics::set_aside_after(metrics, *kept, report);
  } else {
    metrics::set_aside_all(metrics, report);
  }
}

void make_room_for_file(const fs::path& file, const Report& report) {
  std::error_code error;
  if (!fs::exists(file, error)) return;
  report(fmt::format("{} of an earlier start: moved to {}", file.string(), io::set_aside(file).string()));
}

void set_aside_once(const fs::path& file) {
  if (!io::is_there(file)) return;
  const std::string text = io::read_small_file(file, std::numeric_limits<size_t>::max());
  const std::string beginning = file.stem().string() + ".";
  std::error_code error;
  for (const fs::directory_entry& other : fs::directory_iterator(file.parent_path(), error)) {
    const fs::path name = other.path().filename();
    if (name == file.filename() || !name.string().starts_with(beginning) ||
        name.extension() != file.extension() || !holds(other.path(), text))
      continue;
    fs::remove(file);
    return;
  }
  io::set_aside(file);
}

void keep_job(const fs::path& file, const std::string& job) {
  if (holds(file, job)) return;
  if (io::is_there(file)) {
    const std::string earlier = io::read_small_file(file, std::numeric_limits<size_t>::max());
    io::write_file_atomically(io::first_free(file), earlier);
  }
  io::write_file_atomically(file, job);
}

}  // namespace pptrain::app
