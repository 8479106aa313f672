#include "app/run/make_room.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <limits>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "core/io/files.h"
#include "core/io/paths.h"
#include "core/metrics/metrics_file.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {

void create(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(fmt::format("run.dir: cannot create {}: {}", folder.string(), error.message()));
}

void move(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) {
    throw Error(fmt::format("cannot move {} of an earlier run to {}: {}", from.string(), to.string(),
                            error.message()));
  }
}

// Beside the folder itself where `root` is a link to it: a rename stays within one file system.
fs::path aside_folder(const fs::path& root) {
  std::error_code error;
  const fs::path real = fs::is_symlink(root, error) ? fs::canonical(root, error) : root;
  return io::first_free(error ? root : real);
}

}  // namespace

void create_run_dir(const fs::path& folder) {
  create(folder);
}

void make_room(const fs::path& folder, std::optional<int64_t> kept, const Report& report) {
  create(folder / "checkpoints");
  set_aside_checkpoints(folder / "checkpoints", kept, report);
  const fs::path metrics = folder / "metrics.jsonl";
  if (kept) {
    metrics::set_aside_after(metrics, *kept, report);
  } else {
    metrics::set_aside_all(metrics, report);
  }
}

void set_aside_checkpoints(const fs::path& root, std::optional<int64_t> kept, const Report& report) {
  std::vector<checkpoint::StepFolder> moving = checkpoint::list_step_folders(root);
  if (kept) std::erase_if(moving, [&](const checkpoint::StepFolder& folder) { return folder.step <= *kept; });
  if (moving.empty()) return;
  std::ranges::reverse(moving);  // the highest step last
  const fs::path aside = aside_folder(root);
  create(aside);
  for (const checkpoint::StepFolder& folder : moving) move(folder.path, aside / folder.path.filename());
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

void make_room_for_file(const fs::path& file, const Report& report) {
  std::error_code error;
  if (!fs::exists(file, error)) return;
  report(fmt::format("{} of an earlier start: moved to {}", file.string(), io::set_aside(file).string()));
}

void keep_job(const fs::path& file, const std::string& job) {
  if (io::is_there(file)) {
    const std::string earlier = io::read_small_file(file, std::numeric_limits<size_t>::max());
    if (earlier == job) return;
    io::write_file_atomically(io::first_free(file), earlier);
  }
  io::write_file_atomically(file, job);
}

}  // namespace pptrain::app
