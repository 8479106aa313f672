// The files that a job's data source stands for.
#pragma once

#include <dirent.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <new>
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

// Is there a regular file, at the end of links? False for a folder. Throws Error for anything else (a pipe, a
// link to nothing): data that are left out would change what is trained.
inline bool is_file(const std::filesystem::path& path) {
  std::error_code error;
  if (const std::string kind = special_file(path); !kind.empty()) {
    if (kind == "a directory") return false;
    throw Error(in_quotes(path) + " is " + kind + "; expected a file");
  }
  if (std::filesystem::is_regular_file(path, error)) return true;
  if (!std::filesystem::is_symlink(path, error))
    throw Error(in_quotes(path) + " cannot be read" + (error ? ": " + error.message() : ""));
  throw Error(in_quotes(path) + " is a link to " + in_quotes(std::filesystem::read_symlink(path, error)) +
              ", which does not exist; restore that file, or remove the link");
}

inline std::vector<std::filesystem::path> files_of_folder(const std::filesystem::path& folder,
                                                          std::span<const std::string_view> endings) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool named = !name.starts_with('.') &&
                       std::ranges::any_of(endings, [&](std::string_view e) { return name.ends_with(e); });
    if (named && is_file(entry->path())) files.push_back(entry->path());
  }
  if (error) throw Error(in_quotes(folder) + " cannot be listed: " + error.message());
  std::ranges::sort(files);
  if (!files.empty()) return files;
  std::string names;
  for (const std::string_view ending : endings) names += (names.empty() ? "*" : ", *") + std::string(ending);
  throw Error(in_quotes(folder) + " is a folder without " + names + " files");
}

// The first place that glob() could not look at, and why (0: none). It passes over such places in silence.
struct Unseen {
  std::string path;
  int error = 0;

  int note(const char* at, int why) {
    const bool of_file_system = std::string_view(at).ends_with("/lost+found");  // root alone may read it
    if (error == 0 && !of_file_system) *this = {at, why};
    return error;
  }
  // The same, but a name that is not there, or a file in a folder's place, hides no data.
  int note_hidden(const char* at, int why) { return why == ENOENT || why == ENOTDIR ? error : note(at, why); }
};
inline thread_local Unseen unseen;  // glob() gives its functions no argument of ours

inline std::vector<std::filesystem::path> files_of_pattern(const std::string& pattern) {
  glob_t found{};
  found.gl_opendir = [](const char* folder) -> void* { return ::opendir(folder); };
  found.gl_readdir = [](void* folder) { return ::readdir(static_cast<DIR*>(folder)); };
  found.gl_closedir = [](void* folder) { ::closedir(static_cast<DIR*>(folder)); };
  found.gl_stat = [](const char* link, struct stat* into) {
    const int result = ::stat(link, into);
    if (result != 0) unseen.note(link, errno);
    return result;
  };
  found.gl_lstat = [](const char* path, struct stat* into) {
    const int result = ::lstat(path, into);
    if (result != 0) unseen.note_hidden(path, errno);
    return result;
  };
  unseen = {};
  const int result = ::glob(
      pattern.c_str(), GLOB_ALTDIRFUNC,
      [](const char* folder, int error) { return unseen.note_hidden(folder, error); }, &found);
  std::vector<std::filesystem::path> files;
  if (result == 0) files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);  // sorted by name
  ::globfree(&found);
  if (unseen.error != 0)
    throw Error(in_quotes(pattern) + " is a pattern, but " + in_quotes(unseen.path) +
                " cannot be read: " + std::generic_category().message(unseen.error));
  if (result == GLOB_NOSPACE) throw std::bad_alloc();
  std::erase_if(files, [](const std::filesystem::path& path) { return !is_file(path); });
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
  if (std::filesystem::is_symlink(path, error)) is_file(path);  // throws
  if (path.find_first_of("*?[") != std::string::npos) return files_of_pattern(path);
  throw Error(in_quotes(path) +
              " does not exist (a path is relative to the job's file, else to the current directory, " +
              std::filesystem::current_path(error).string() + ")");
}

}  // namespace source_files_detail

// A path is a file, a folder (its files with one of these endings, by name, without subfolders), or, if
// nothing has its name, a pattern of the shell (*, ?, [a-z]). Folders and wildcards skip hidden files, whose
// names begin with a dot. Returns all files in this order. Throws Error that says what is wrong with one of
// them (a link to nothing, a pipe), that a folder cannot be read, or that a path stands for no file.
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
