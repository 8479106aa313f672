#include "core/corpus/parquet_file.h"

#include <dlfcn.h>
#include <spdlog/fmt/fmt.h>

#include <array>

#include "core/base/error.h"
#include "core/io/files.h"

namespace pptrain::corpus {
namespace {

namespace fs = std::filesystem;

using Message = std::array<char, 1024>;

fs::path folder_of_program() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

const PptrainParquetApi& load_module() {
  constexpr const char* name = "libpptrain_parquet.so";
  const fs::path path = folder_of_program() / name;
  if (!fs::exists(path)) {
    throw Error(
        fmt::format("this build has no Parquet: {} is not beside the program. It is built where pyarrow "
                    "(scripts/requirements.txt) or Arrow's and Parquet's C++ libraries are found",
                    name));
  }
  void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) throw Error(fmt::format("Parquet cannot be loaded: {}", ::dlerror()));
  using Entry = const PptrainParquetApi* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(module, "pptrain_parquet_api"));
  if (entry == nullptr || entry()->version != pptrain_parquet_version)
    throw Error(fmt::format("'{}' is of another version of this program: build both again", path.string()));
  return *entry();
}

// Loaded once, and kept.
const PptrainParquetApi& module() {
  static const PptrainParquetApi& api = load_module();
  return api;
}

struct Rows {
  std::vector<std::string>& texts;
  size_t columns;
  size_t bytes = 0;
};

void append_row(void* context, const char* const* texts, const size_t* sizes) {
  Rows& rows = *static_cast<Rows*>(context);
  for (size_t i = 0; i < rows.columns; ++i) {
    rows.texts.emplace_back(texts[i], sizes[i]);
    rows.bytes += sizes[i];
  }
}

}  // namespace

ParquetFile::ParquetFile(const fs::path& path, const std::vector<std::string>& columns)
    : path_(path), api_(module()), columns_(columns.size()), size_(io::RegularFile(path).size()) {
  std::vector<const char*> names;
  for (const std::string& column : columns) names.push_back(column.c_str());
  Message message{};
  file_ =
      api_.open(path.c_str(), names.data(), static_cast<int>(names.size()), message.data(), message.size());
  if (file_ == nullptr) throw Error(fmt::format("'{}': {}", path.string(), message.data()));
  rows_ = api_.rows(file_);
}

ParquetFile::~ParquetFile() {
  api_.close(file_);
}

bool ParquetFile::next(std::vector<std::string>& texts, size_t& bytes) {
  Rows rows{texts, columns_};
  Message message{};
  const int64_t read = api_.next(file_, &append_row, &rows, message.data(), message.size());
  if (read < 0) throw Error(fmt::format("'{}': {}", path_.string(), message.data()));
  read_ += read;
  bytes += rows.bytes;
  return read > 0;
}

uint64_t ParquetFile::bytes_done() const {
  if (read_ >= rows_) return size_;
  return static_cast<uint64_t>(static_cast<double>(size_) * static_cast<double>(read_) /
                               static_cast<double>(rows_));
}

}  // namespace pptrain::corpus
