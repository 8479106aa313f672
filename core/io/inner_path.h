// Paths that a file gives: names inside the folder that the file belongs to, and nothing else.
#pragma once

#include <filesystem>
#include <string_view>

namespace pptrain::io {

// Whether `path` names something inside a folder: relative, no part empty or "." or "..", no NUL. A path with
// an empty part ("a//etc") would become absolute when "a/" is taken away.
bool is_inner_path(std::string_view path);

// Whether `path`, its links followed, lies in `folder`, whose links are followed too. False where it cannot
// be told.
bool lies_in(const std::filesystem::path& path, const std::filesystem::path& folder);

// folder / path. Throws Error where `path` is no inner path, or where a link leads out of the folder.
std::filesystem::path inner_path(const std::filesystem::path& folder, std::string_view path);

}  // namespace pptrain::io
