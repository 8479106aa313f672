// Names of files: whether something is there, whether a name from outside stays in its folder, and free
// names.
#pragma once

#include <filesystem>
#include <string_view>
#include <system_error>

namespace pptrain::io {

// --- Whether something has a name; a name that cannot be looked at has nothing.

// True if `path` (followed through links) names something; false too if a folder on the way may not be read
// or the device fails. Never throws: opening the file reports what is wrong.
inline bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// --- Paths that a file gives: names inside the folder that the file belongs to, and nothing else.

// Whether `path` names something inside a folder: relative, no part empty or "." or "..", no NUL. A path with
// an empty part ("a//etc") would become absolute when "a/" is taken away.
bool is_inner_path(std::string_view path);

// Whether `path`, its links followed, lies in `folder`, whose links are followed too. False if that is
// unknown.
bool lies_in(const std::filesystem::path& path, const std::filesystem::path& folder);

// folder / path. Throws Error if `path` is no inner path, or if a link leads out of the folder.
std::filesystem::path inner_path(const std::filesystem::path& folder, std::string_view path);

// --- Names for files that are moved out of the way and kept: metrics.jsonl -> metrics.1.jsonl,
// metrics.2.jsonl, ...

// The first of NAME.1.EXT, NAME.2.EXT, ... (NAME.1, ... of a folder) beside `path` that is not there.
std::filesystem::path first_free(const std::filesystem::path& path);

// Renames `path` to first_free(path), and syncs the folder. Returns the new name. Throws Error that names
// both.
std::filesystem::path set_aside(const std::filesystem::path& path);

}  // namespace pptrain::io
