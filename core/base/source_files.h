// The files that a job's data source stands for.
#pragma once

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/base/special_file.h"

namespace pptrain {

namespace source_files_detail {

inline std::string in_quotes(const std::filesystem::path& path) {
  return '"' + path.string() + '"';
}

inline std::vector<std::filesystem::path> files_of_folder(const std::filesystem::path& folder,
                                                          std::span<const std::string_view> endings) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool named = std::ranges::any_of(endings, [&](std::string_view e) { return name.ends_with(e); });
    std::error_code ignored;
    if (named && entry->is_regular_file(ignored)) files.push_back(entry->path());
  }
  if (error) throw Error(in_quotes(folder) + " cannot be listed: " + error.message());
  std::ranges::sort(files);
  if (!files.empty()) return files;
  std::string names;
  for (const std::string_view ending : endings) names += (names.empty() ? "*" : ", *") + std::string(ending);
  throw Error(in_quotes(folder) + " is a folder without " + names + " files");
}

inline std::vector<std::filesystem::path> files_of_pattern(const std::string& pattern) {
  glob_t found{};
  const int result = ::glob(pattern.c_str(), 0, nullptr, &found);  // sorted by name
  std::vector<std::filesystem::path> files;
  for (size_t i = 0; result == 0 && i < found.gl_pathc; ++i) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(found.gl_pathv[i], ignored)) files.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
  if (files.empty()) throw Error(in_quotes(pattern) + " is a pattern that no file has the name of");
  return files;
}

inline std::vector<std::filesystem::path> files_of(const std::string& path,
                                                   std::span<const std::string_view> endings) {
  std::error_code error;
  const std::string kind = special_file(path);
  if (kind == "a directory") return files_of_folder(path, endings);
  if (!kind.empty()) throw Error(in_quotes(path) + " is " + kind + "; expected a file");
  if (std::filesystem::exists(path, error)) return {path};
  if (path.find_first_of("*?[") != std::string::npos) return files_of_pattern(path);
  throw Error(in_quotes(path) +
              " does not exist (a path is relative to the job's file, else to the current directory, " +
              std::filesystem::current_path(error).string() + ")");
}

}  // namespace source_files_detail

// Each path is a file; a folder, which stands for its files with one of these endings, in the order of their
// names, not those of folders inside; or, where there is nothing of its name, a pattern of the shell (*, ?,
// [a-z]). The files of all of them, in this order. Throws Error that says what is wrong with one of them, or
// that it stands for no file.
inline std::vector<std::filesystem::path> source_files(std::span<const std::string> paths,
                                                       std::span<const std::string_view> endings) {
  std::vector<std::filesystem::path> files;
  for (const std::string& path : paths) {
    const std::vector<std::filesystem::path> more = source_files_detail::files_of(path, endings);
    files.insert(files.end(), more.begin(), more.end());
  }
  return files;
}

}  // namespace pptrain
