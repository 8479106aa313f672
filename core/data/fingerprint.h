// Whether two files hold the same data, judged by a few places of each.
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace pptrain::data {

// 32 hexadecimal digits, of a file's length and of its bytes at 24 places (file_places.h): it tells other
// lengths and other texts, but not every change of a few bytes within a long file. Neither the file's name
// nor where it is counts. Throws Error with the path and the reason where it cannot be read, or is no regular
// file.
std::string fingerprint(const std::filesystem::path& file);

// The same of several files, in this order: of a folder's, for instance (token_files).
std::string fingerprint(std::span<const std::filesystem::path> files);

}  // namespace pptrain::data
