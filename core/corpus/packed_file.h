// Files that gzip or zstd packed, unpacked as they are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace pptrain::corpus {

// By its name: .gz or .zst.
bool is_packed(const std::filesystem::path& file);

class PackedFile {
 public:
  virtual ~PackedFile() = default;
  // Appends about `bytes` unpacked ones, or what is left; false where nothing is left behind them. Several
  // packed pieces in one file are one text, as for gzip and zstd. Throws Error with the file and the reason
  // where it is damaged or ends within a piece.
  virtual bool read(std::string& out, size_t bytes) = 0;
  virtual uint64_t consumed() const = 0;  // bytes of the file
  virtual uint64_t size() const = 0;      // of the file
};

// Throws Error with the path and the reason.
std::unique_ptr<PackedFile> open_packed(const std::filesystem::path& file);

}  // namespace pptrain::corpus
