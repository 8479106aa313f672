// Chunks of whole documents: of a mapped file, of one that is unpacked, of Parquet.
#include <dlfcn.h>
#include <spdlog/fmt/fmt.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/io/files.h"
#include "core/io/mapped_file.h"
#include "core/text/corpus/documents.h"
#include "core/text/corpus/foreign_text.h"
#include "core/text/corpus/parquet_api.h"

namespace pptrain::corpus {
namespace {

// A file that gzip or zstd packed, unpacked as it is read.
class PackedFile {
 public:
  explicit PackedFile(const std::filesystem::path& path) : file_(path) {}
  virtual ~PackedFile() = default;

  // Appends about `bytes` unpacked ones, or what is left; false if nothing is left behind them. Several
  // packed frames in one file are one text, as for gzip and zstd. Throws Error with the file and the reason
  // if it is damaged or ends within a frame.
  bool read(std::string& out, size_t bytes) {
    const size_t begin = out.size();
    out.resize(begin + bytes);
    size_t made = 0;
    while (made < bytes && (at_ < size() || inside_)) {
      const size_t more = unpack(out.data() + begin + made, bytes - made);
      made += more;
      if (more == 0 && at_ == size() && inside_) fail("it ends within its packed text: it is cut");
    }
    out.resize(begin + made);
    return at_ < size() || inside_;
  }
  uint64_t consumed() const { return at_; }  // bytes of the file
  uint64_t size() const { return file_.bytes().size(); }

 protected:
  // Unpacks from rest() to at most `room` bytes, says how many, and tells advance() what it took.
  virtual size_t unpack(char* to, size_t room) = 0;

  std::span<const std::byte> rest() const { return file_.bytes().subspan(at_); }
  // `inside`: the packed frame goes on.
  void advance(size_t bytes, bool inside) {
    at_ += bytes;
    inside_ = inside;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("'{}': {}", file_.path().string(), what));
  }

 private:
  io::MappedFile file_;
  size_t at_ = 0;
  bool inside_ = false;
};

class GzipFile final : public PackedFile {
 public:
  explicit GzipFile(const std::filesystem::path& path) : PackedFile(path) {
    constexpr int gzip_alone = 16 + MAX_WBITS;
    if (inflateInit2(&stream_, gzip_alone) != Z_OK) fail("gzip cannot begin: out of memory");
  }
  ~GzipFile() override { inflateEnd(&stream_); }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

 private:
  size_t unpack(char* to, size_t room) override {
    constexpr size_t most = size_t{1} << 30;  // zlib counts in 32 bits
    const auto bytes = rest();
    const auto given = static_cast<uInt>(std::min(bytes.size(), most));
    const auto space = static_cast<uInt>(std::min(room, most));
    // zlib does not write to its input.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
    stream_.avail_in = given;
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = space;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
      fail(fmt::format("no sound gzip: {}", stream_.msg != nullptr ? stream_.msg : "damaged"));
    size_t taken = given - stream_.avail_in;
    if (result == Z_STREAM_END) {
      inflateReset(&stream_);
      // Zeros behind a frame are padding, as of tapes; gzip -t takes them too.
      while (taken < bytes.size() && bytes[taken] == std::byte{0}) ++taken;
    }
    advance(taken, result != Z_STREAM_END);
    return space - stream_.avail_out;
  }

  z_stream stream_{};
};

class ZstdFile final : public PackedFile {
 public:
  explicit ZstdFile(const std::filesystem::path& path)
      : PackedFile(path), stream_(ZSTD_createDStream(), &ZSTD_freeDStream) {
    if (!stream_) fail("zstd cannot begin: out of memory");
    // Corpora are packed with windows of up to 2 GiB (zstd --long=31). The window is allocated as the frame
    // says, 128 MiB at most unless more is allowed.
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax,
                           ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
  }

 private:
  size_t unpack(char* to, size_t room) override {
    const auto bytes = rest();
    ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
    ZSTD_outBuffer out{to, room, 0};
    const size_t result = ZSTD_decompressStream(stream_.get(), &out, &in);
    if (ZSTD_isError(result) != 0) fail(fmt::format("no sound zstd: {}", ZSTD_getErrorName(result)));
    advance(in.pos, result != 0);
    return out.pos;
  }

  std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream_;
};

// By its name: .gz or .zst.
bool is_packed(const std::filesystem::path& file) {
  return file.extension() == ".gz" || file.extension() == ".zst";
}

// Throws Error with the path and the reason.
std::unique_ptr<PackedFile> open_packed(const std::filesystem::path& file) {
  if (file.extension() == ".gz") return std::make_unique<GzipFile>(file);
  return std::make_unique<ZstdFile>(file);
}

namespace fs = std::filesystem;

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

constexpr size_t chunk_bytes = size_t{1} << 20;

// Behind the first border from chunk_bytes on; npos if there is none.
size_t chunk_end(std::string_view text, std::string_view border) {
  if (border.empty()) return std::string_view::npos;
  // From the beginning, so that borders that overlap are read as by each_document.
  size_t found = text.find(border);
  while (found != std::string_view::npos && found + border.size() < chunk_bytes)
    found = text.find(border, found + border.size());
  return found == std::string_view::npos ? found : found + border.size();
}

class MappedChunks {
 public:
  MappedChunks(const std::filesystem::path& file, std::string border)
      : file_(std::make_shared<io::MappedFile>(file)), border_(std::move(border)) {
    refuse_packed(file, file_->text());
    refuse_wide(file, file_->text());
  }

  std::optional<Chunk> next() {
    const std::string_view all = file_->text();
    if (at_ == all.size()) return std::nullopt;
    const std::string_view rest = all.substr(at_);
    const size_t size =
        std::min(rest.size() <= chunk_bytes ? rest.size() : chunk_end(rest, border_), rest.size());
    at_ += size;
    return Chunk{.file = file_->path(),
                 .keep = file_,
                 .text = rest.substr(0, size),
                 .counted_from = all.data(),
                 .line = 1,
                 .rows = {},
                 .bytes = size};
  }

 private:
  std::shared_ptr<const io::MappedFile> file_;
  std::string border_;
  size_t at_ = 0;
};

class PackedChunks {
 public:
  PackedChunks(const std::filesystem::path& path, std::string border)
      : path_(path), file_(open_packed(path)), border_(std::move(border)) {}

  std::optional<Chunk> next() {
    size_t size = std::string::npos;
    for (;;) {
      if (unpacked_.size() > chunk_bytes) size = chunk_end(unpacked_, border_);
      if (size != std::string::npos || ended_) break;
      // Twice as much each time, since a long document is searched from its beginning.
      ended_ = !file_->read(unpacked_, std::max(unpacked_.size(), chunk_bytes / 2));
    }
    if (unpacked_.empty()) return std::nullopt;
    if (line_ == 1 && done_ == 0) refuse_wide(path_, unpacked_);
    auto text = std::make_shared<std::string>(unpacked_.substr(0, size));
    unpacked_.erase(0, text->size());
    const uint64_t done = unpacked_.empty() && ended_ ? file_->size() : file_->consumed();
    Chunk chunk{.file = path_,
                .keep = text,
                .text = *text,
                .counted_from = text->data(),
                .line = line_,
                .rows = {},
                .bytes = done - std::exchange(done_, done)};
    line_ += std::count(text->begin(), text->end(), '\n');
    return chunk;
  }

 private:
  std::filesystem::path path_;
  std::unique_ptr<PackedFile> file_;
  std::string border_;
  std::string unpacked_;  // that no chunk has yet
  bool ended_ = false;
  uint64_t done_ = 0;
  int64_t line_ = 1;
};

// Rows of a Parquet file, through a module that is loaded when the first one is opened: Arrow is a large
// library, which a program that reads none should not wait for.
class ParquetChunks {
 public:
  // Throws Error with the file and the reason: no Parquet, no such column, one that has no texts (nor lists,
  // if these are allowed); or that this build has no Parquet.
  ParquetChunks(const fs::path& path, const DocumentFormat& format)
      : path_(path), api_(module()), columns_(format.keys().size()), size_(io::RegularFile(path).size()) {
    const std::vector<std::string> columns = format.keys();
    std::vector<const char*> names;
    for (const std::string& column : columns) names.push_back(column.c_str());
    const int lists = format.has_messages() || format.has_tokens() ? 1 : 0;
    file_ = api_.open(path.c_str(), names.data(), static_cast<int>(names.size()), lists, message_.data(),
                      message_.size());
    if (file_ == nullptr) fail();
    rows_ = api_.rows(file_);
  }
  ~ParquetChunks() { api_.close(file_); }
  ParquetChunks(const ParquetChunks&) = delete;
  ParquetChunks& operator=(const ParquetChunks&) = delete;

  // Throws Error with the file and the reason, such as a row without a text.
  std::optional<Chunk> next() {
    texts_.clear();
    bytes_ = 0;
    Chunk chunk{.file = path_, .keep = {}, .text = {}, .rows = {}, .first_row = read_};
    int64_t read = 1;
    while (bytes_ < chunk_bytes && read > 0) {
      read = api_.next(file_, &append_row, this, message_.data(), message_.size());
      if (read < 0) fail();
      read_ += read;
    }
    if (texts_.empty()) return std::nullopt;
    chunk.rows = std::move(texts_);
    const uint64_t done = bytes_done();
    chunk.bytes = done - std::exchange(done_, done);
    return chunk;
  }

 private:
  static void append_row(void* context, const char* const* texts, const size_t* sizes) {
    auto& own = *static_cast<ParquetChunks*>(context);
    for (size_t i = 0; i < own.columns_; ++i) {
      own.texts_.emplace_back(texts[i], sizes[i]);
      own.bytes_ += sizes[i];
    }
  }
  // Bytes of the file, as far as its rows are read.
  uint64_t bytes_done() const {
    if (read_ >= rows_) return size_;
    return static_cast<uint64_t>(static_cast<double>(size_) * static_cast<double>(read_) /
                                 static_cast<double>(rows_));
  }
  [[noreturn]] void fail() const { throw Error(fmt::format("'{}': {}", path_.string(), message_.data())); }

  fs::path path_;
  const PptrainParquetApi& api_;
  size_t columns_;
  uint64_t size_, done_ = 0;  // bytes
  std::array<char, 1024> message_{};
  void* file_ = nullptr;
  int64_t rows_ = 0, read_ = 0;
  std::vector<std::string> texts_;  // of the next chunk's rows, one row after the other
  size_t bytes_ = 0;                // of these
};

template <typename Chunks, typename Argument>
NextChunk next_of(const std::filesystem::path& file, const Argument& argument) {
  return [chunks = std::make_shared<Chunks>(file, argument)] { return chunks->next(); };
}

}  // namespace

NextChunk open_chunks(const std::filesystem::path& file, const DocumentFormat& format) {
  if (format.kind == config::DataFormat::parquet) return next_of<ParquetChunks>(file, format);
  const std::string border = format.kind == config::DataFormat::jsonl ? "\n" : format.separator;
  if (is_packed(file)) return next_of<PackedChunks>(file, border);
  return next_of<MappedChunks>(file, border);
}

}  // namespace pptrain::corpus
