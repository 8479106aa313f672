// Files that hold a text in a form which is not read here.
#pragma once

#include <filesystem>
#include <string_view>

namespace pptrain::corpus {

// Throws Error that names the file and the command that converts it, if its first bytes are those of a packer
// (bzip2, xz, zip, lz4; gzip and zstd too, which are unpacked by the file's ending), or of Parquet.
void refuse_packed(const std::filesystem::path& file, std::string_view begin);

// The same if they are UTF-16 or UTF-32. `begin`: of the text, once it is unpacked.
void refuse_wide(const std::filesystem::path& file, std::string_view begin);

// The same if the first line of JSONL begins a JSON array of objects, or an object that goes on in the next
// line.
void refuse_json(const std::filesystem::path& file, std::string_view first_line);

}  // namespace pptrain::corpus
