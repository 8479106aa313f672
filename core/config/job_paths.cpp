#include "core/config/job_paths.h"

#include <glob.h>

#include <algorithm>
#include <system_error>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/config/field.h"
#include "core/config/options.h"

namespace pptrain::config {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path, error)) return true;
  if (path.string().find_first_of("*?[") == std::string::npos) return false;
  glob_t found{};
  const bool matches = ::glob(path.c_str(), GLOB_NOSORT, nullptr, &found) == 0;
  ::globfree(&found);
  return matches;
}

// Removes "." unless the path has "..", which may follow a link that leads elsewhere.
fs::path tidy(const fs::path& path) {
  return std::ranges::find(path, "..") == path.end() ? path.lexically_normal() : path;
}

void make_absolute(const Option& option, JobConfig& job) {
  const auto change = [&](std::string& path) {
    if (option.is_path(path)) path = tidy(fs::absolute(path)).string();
  };
  std::visit(
      [&]<class T>(const Access<T>& access) {
        if constexpr (std::is_same_v<T, std::string>) {
          change(access(job));
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          for (std::string& path : access(job)) change(path);
        }
      },
      option.target);
}

}  // namespace

std::string beside_job(const fs::path& folder, const std::string& path) {
  if (folder.empty() || fs::path(path).is_absolute()) return path;
  const fs::path beside = tidy(folder / path);
  return is_there(beside) ? beside.string() : path;
}

JobConfig with_absolute_paths(JobConfig job) {
  for (const Option& option : options()) make_absolute(option, job);
  for (const TableList& list : table_lists()) {
    std::vector<JobConfig> elements;
    for (size_t i = 0; i < list.size(job); ++i) elements.push_back(list.only(job, i));
    list.clear(job);
    for (JobConfig& element : elements) {
      for (const Option& field : list.fields) make_absolute(field, element);
      list.append(job, element);
    }
  }
  return job;
}

}  // namespace pptrain::config
