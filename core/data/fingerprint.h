// Whether two files hold the same data, told from little of them.
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace pptrain::data {

// 32 hexadecimal digits, of a file's length and of its bytes at 24 places: head, tail and, evenly apart,
// 16 KiB each; a file of 384 KiB or less counts whole. So it tells other lengths and other texts, but not
// every change of a few bytes within a long file. Names and places of files do not count. Throws Error with
// the path and the reason where the file cannot be read, or is no regular file.
std::string fingerprint(const std::filesystem::path& file);

// The same of several files, in this order; of each at least head and tail, and 24 places or so of them all.
std::string fingerprint(std::span<const std::filesystem::path> files);

}  // namespace pptrain::data
