#include <spdlog/fmt/fmt.h>

#include <string_view>
#include <system_error>

#include "core/base/error.h"
#include "core/io/mapped_file.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/coverage.h"
#include "parallel/checkpoint/open_checkpoint.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::checkpoint {
namespace {

namespace fs = std::filesystem;

void verify_file(const fs::path& step_dir, const FileEntry& entry, std::vector<std::string>& problems) {
  try {
    const io::SafetensorsReader file = open_file(step_dir, entry);
    const auto differences = compare(file, entry);
    problems.insert(problems.end(), differences.begin(), differences.end());
    for (const auto& [name, tensor] : entry.tensors) {
      if (!file.contains(name)) continue;
      try {
        check_bytes(file, name, tensor);
      } catch (const Error& error) {
        problems.emplace_back(error.what());
      }
    }
  } catch (const Error& error) {
    problems.emplace_back(error.what());
  }
}

// The folder that `latest` names; nothing, with a report, if there is no such file or it names nothing
// useful.
std::optional<fs::path> read_latest(const fs::path& root,
                                    const std::function<void(const std::string&)>& report) {
  const fs::path path = root / latest_name;
  if (!fs::exists(path)) return std::nullopt;
  std::string name;
  try {
    const io::MappedFile file(path);
    name.assign(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  } catch (const Error& error) {
    report(error.what());
    return std::nullopt;
  }
  if (name.ends_with('\n')) name.pop_back();
  constexpr size_t shown = 80;
  if (!parse_step_folder(name)) {
    report(fmt::format("'{}' is damaged: '{}' is not the name of a checkpoint", path.string(),
                       name.substr(0, shown)));
    return std::nullopt;
  }
  if (!fs::is_directory(root / name)) {
    report(fmt::format("'{}' names '{}', which is not there", path.string(), name));
    return std::nullopt;
  }
  return root / name;
}

bool sound(const fs::path& step_dir, const std::function<void(const std::string&)>& report) {
  const std::vector<std::string> problems = verify(step_dir);
  if (problems.empty()) return true;
  const std::string more =
      problems.size() == 1 ? "" : fmt::format(" (and {} more problems)", problems.size() - 1);
  report(fmt::format("the checkpoint '{}' is passed over: {}{}", step_dir.string(), problems.front(), more));
  return false;
}

}  // namespace

std::vector<std::string> verify(const fs::path& step_dir) {
  std::vector<std::string> problems;
  try {
    const Manifest manifest = read_manifest(step_dir);
    for (const FileEntry& entry : manifest.files) verify_file(step_dir, entry, problems);
    if (!problems.empty()) return problems;  // the slices are judged once they are what the files hold
    for (const std::string& problem : coverage_problems(manifest.files)) {
      problems.push_back(fmt::format("'{}': {}", step_dir.string(), problem));
    }
  } catch (const Error& error) {
    problems.emplace_back(error.what());
  }
  return problems;
}

std::optional<fs::path> find_resumable(const fs::path& root,
                                       const std::function<void(const std::string&)>& report) {
  const std::vector<StepFolder> folders = list_step_folders(root);
  const std::optional<fs::path> latest = read_latest(root, report);
  if (latest && sound(*latest, report)) return latest;
  for (const StepFolder& folder : folders) {
    if (latest && folder.path.filename() == latest->filename()) continue;
    if (sound(folder.path, report)) return folder.path;
  }
  return std::nullopt;
}

}  // namespace pptrain::checkpoint
