#include "parallel/checkpoint/step_folders.h"

#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <functional>
#include <string_view>
#include <system_error>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/base/timing.h"
#include "core/io/atomic_file.h"
#include "core/io/files.h"
#include "core/io/paths.h"
#include "parallel/checkpoint/manifest.h"

namespace pptrain::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view step_prefix = "step_";

// "" if the checkpoint may be sound.
std::string problem_of(const fs::path& step_dir) {
  try {
    const Reader reader(step_dir);
  } catch (const Unusable& error) {
    return error.what();
  }
  return "";
}

// The problem of the first rank on which `action` throws Unusable, the same text on all; "" if none does.
template <typename Action>
std::string problem_on_any_rank(comm::Communicator& comm, const Action& action) {
  const auto [failing, problem] = first_problem<Unusable>(comm, action);
  return failing < 0 || comm.size() == 1 ? problem : fmt::format("rank {}: {}", failing, problem);
}

}  // namespace

std::string step_folder_name(int64_t step) {
  return fmt::format("{}{}", step_prefix, step);
}

std::string diverged_folder_name(int64_t step) {
  return "diverged_" + step_folder_name(step);
}

std::optional<int64_t> parse_step_folder(const std::string& name) {
  if (!name.starts_with(step_prefix)) return std::nullopt;
  const auto step = to_number<int64_t>(std::string_view(name).substr(step_prefix.size()));
  return step && *step >= 0 && name == step_folder_name(*step) ? step : std::nullopt;
}

std::string name_in(const fs::path& file) {
  constexpr size_t longest = 64;
  try {
    std::string name = io::read_small_file(file, longest);
    if (name.ends_with('\n')) name.pop_back();
    if (parse_step_folder(name)) return name;
  } catch (const Error&) {
    // Counts as if it held nothing.
  }
  return "";
}

void remove_temporaries(const fs::path& root) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator entry(root, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().string().starts_with(temporary_prefix)) found.push_back(entry->path());
  }
  for (const fs::path& folder : found) fs::remove_all(folder, error);
}

StepFolders list_step_folders(const fs::path& root) {
  StepFolders found;
  const auto failed = [&](const std::error_code& error) {
    return io::file_error("cannot list the checkpoints in", root, error.value());
  };
  std::error_code error;
  fs::directory_iterator entry(root, error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) return found;
  if (error) throw failed(error);
  while (entry != fs::directory_iterator()) {
    const auto step = parse_step_folder(entry->path().filename().string());
    // An unreadable folder counts, so that it is not overlooked.
    std::error_code unknown;
    if (step && (entry->is_directory(unknown) || unknown)) found.emplace(*step, entry->path());
    entry.increment(error);
    if (error) throw failed(error);
  }
  return found;
}

void take_back_replaced(const fs::path& root, const std::function<void(const std::string&)>& report) {
  std::vector<fs::path> aside;
  std::error_code error;
  for (fs::directory_iterator entry(root, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == io::replaced_extension) aside.push_back(entry->path());
  }
  for (const fs::path& folder : aside) {
    const std::string name = folder.stem().stem().string();  // of step_4.1.replaced
    const fs::path place = root / name;
    if (!parse_step_folder(name) || fs::exists(fs::symlink_status(place, error))) continue;
    fs::rename(folder, place, error);
    report(error
               ? fmt::format("cannot rename '{}' to '{}': {}", folder.string(), name, error.message())
               : fmt::format("a run was killed as it replaced the checkpoint '{}': the old one is back there",
                             place.string()));
  }
}

bool is_step_folder(const fs::path& path) {
  return parse_step_folder(path.filename().string()).has_value() || io::is_there(path / manifest_name);
}

std::optional<fs::path> find_named(const fs::path& path,
                                   const std::function<void(const std::string&)>& report,
                                   KnownProblems& known) {
  if (is_step_folder(path)) {
    if (const auto found = known.find(path); found != known.end()) throw Error(found->second);
    return path;
  }
  for (const fs::path& root : {path, path / "checkpoints"}) {
    if (const auto found = find_resumable(root, report, known)) return found;
  }
  return std::nullopt;
}

std::optional<fs::path> find_resumable(const fs::path& root,
                                       const std::function<void(const std::string&)>& report,
                                       KnownProblems& known) {
  const StepFolders folders = list_step_folders(root);
  std::string all;
  for (const auto& [step, folder] : folders) {
    if (!known.contains(folder)) {
      const std::string problem = problem_of(folder);
      if (problem.empty()) return folder;
      // Its run has removed it, and has a newer one.
      if (!list_step_folders(root).contains(step)) return find_resumable(root, report, known);
      report(fmt::format("the checkpoint '{}' is passed over: {}", folder.string(), problem));
      known[folder] = problem;
    }
    all += fmt::format("\n  {}: {}", folder.filename().string(), known[folder]);
  }
  if (folders.empty()) return std::nullopt;
  throw Error(fmt::format(
      "none of the checkpoints in '{}' can be used:{}\nWhere the disk or the rights are at fault, set them "
      "right and try again.",
      root.string(), all));
}

std::optional<fs::path> find_resumable(const fs::path& root,
                                       const std::function<void(const std::string&)>& report) {
  KnownProblems known;
  return find_resumable(root, report, known);
}

std::string load_on_all(comm::Communicator& comm, const fs::path& step_dir,
                        const std::function<void(const Reader&)>& load) {
  std::optional<Reader> reader;
  const std::string problem = problem_on_any_rank(comm, [&] { reader.emplace(step_dir); });
  if (!problem.empty()) return problem;
  const auto begin = std::chrono::steady_clock::now();
  std::string fault = problem_on_any_rank(comm, [&] { load(*reader); });
  log_of(Subsystem::checkpoint)
      .info("read '{}' in {:.3f} s{}", step_dir.string(), seconds_since(begin),
            fault.empty() ? "" : ", in vain: " + fault);
  return fault;
}

}  // namespace pptrain::checkpoint
