// Names under which something makes room and is kept: metrics.jsonl -> metrics.1.jsonl, metrics.2.jsonl, ...
#pragma once

#include <filesystem>

namespace pptrain::io {

// The first of NAME.1.EXT, NAME.2.EXT, ... (NAME.1, ... of a folder) beside `path` that is not there.
std::filesystem::path first_free(const std::filesystem::path& path);

// Renames `path` to first_free(path), and syncs the folder. Returns the new name. Throws Error that names
// both.
std::filesystem::path set_aside(const std::filesystem::path& path);

}  // namespace pptrain::io
