// Columns of texts of a Parquet file, through a module that is loaded when the first one is opened: Arrow is
// a large library, which a program that reads none should not wait for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/corpus/parquet_api.h"

namespace pptrain::corpus {

class ParquetFile {
 public:
  // Throws Error with the file and the reason: no Parquet, no such column, one that has no texts; or that
  // this build has no Parquet.
  ParquetFile(const std::filesystem::path& path, const std::vector<std::string>& columns);
  ~ParquetFile();
  ParquetFile(const ParquetFile&) = delete;
  ParquetFile& operator=(const ParquetFile&) = delete;

  // Appends the texts of some rows, column after column, row after row, and adds up their bytes. False at the
  // end. Throws Error with the file and the reason, such as a row without a text.
  bool next(std::vector<std::string>& texts, size_t& bytes);
  uint64_t bytes_done() const;  // of the file, as far as its rows are read

 private:
  std::filesystem::path path_;
  const PptrainParquetApi& api_;
  size_t columns_;
  void* file_ = nullptr;
  uint64_t size_ = 0;  // bytes
  int64_t rows_ = 0, read_ = 0;
};

}  // namespace pptrain::corpus
