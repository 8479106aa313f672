// Stretches of whole documents: of a mapped file, of one that is unpacked, of Parquet.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "core/corpus/documents.h"
#include "core/corpus/packed_file.h"
#include "core/corpus/parquet_file.h"
#include "core/io/mapped_file.h"

namespace pptrain::corpus {
namespace {

constexpr size_t stretch_bytes = size_t{1} << 20;

// Behind the first border from stretch_bytes on; npos where there is none.
size_t stretch_end(std::string_view text, std::string_view border) {
  if (border.empty()) return std::string_view::npos;
  // From the beginning, so that borders that overlap are read as by each_document.
  size_t found = text.find(border);
  while (found != std::string_view::npos && found + border.size() < stretch_bytes)
    found = text.find(border, found + border.size());
  return found == std::string_view::npos ? found : found + border.size();
}

class MappedStretches final : public FileStretches {
 public:
  MappedStretches(const std::filesystem::path& file, std::string border)
      : file_(std::make_shared<io::MappedFile>(file)), border_(std::move(border)) {}

  std::optional<Stretch> next() override {
    const std::string_view all(reinterpret_cast<const char*>(file_->bytes().data()), file_->bytes().size());
    if (at_ == all.size()) return std::nullopt;
    const std::string_view rest = all.substr(at_);
    const size_t size =
        std::min(rest.size() <= stretch_bytes ? rest.size() : stretch_end(rest, border_), rest.size());
    at_ += size;
    return Stretch{.file = file_->path(),
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

class PackedStretches final : public FileStretches {
 public:
  PackedStretches(const std::filesystem::path& path, std::string border)
      : path_(path), file_(open_packed(path)), border_(std::move(border)) {}

  std::optional<Stretch> next() override {
    size_t size = std::string::npos;
    for (;;) {
      if (unpacked_.size() > stretch_bytes) size = stretch_end(unpacked_, border_);
      if (size != std::string::npos || ended_) break;
      // Twice as much each time, since a long document is searched from its beginning.
      ended_ = !file_->read(unpacked_, std::max(unpacked_.size(), stretch_bytes / 2));
    }
    if (unpacked_.empty()) return std::nullopt;
    auto text = std::make_shared<std::string>(unpacked_.substr(0, size));
    unpacked_.erase(0, text->size());
    const uint64_t done = unpacked_.empty() && ended_ ? file_->size() : file_->consumed();
    Stretch stretch{.file = path_,
                    .keep = text,
                    .text = *text,
                    .counted_from = text->data(),
                    .line = line_,
                    .rows = {},
                    .bytes = done - std::exchange(done_, done)};
    line_ += std::count(text->begin(), text->end(), '\n');
    return stretch;
  }

 private:
  std::filesystem::path path_;
  std::unique_ptr<PackedFile> file_;
  std::string border_;
  std::string unpacked_;  // that no stretch has yet
  bool ended_ = false;
  uint64_t done_ = 0;
  int64_t line_ = 1;
};

class ParquetStretches final : public FileStretches {
 public:
  ParquetStretches(const std::filesystem::path& path, const std::vector<std::string>& columns)
      : path_(path), file_(path, columns) {}

  std::optional<Stretch> next() override {
    Stretch stretch{.file = path_, .keep = {}, .text = {}, .rows = {}};
    size_t bytes = 0;
    while (bytes < stretch_bytes && file_.next(stretch.rows, bytes)) {
    }
    if (stretch.rows.empty()) return std::nullopt;
    const uint64_t done = file_.bytes_done();
    stretch.bytes = done - std::exchange(done_, done);
    return stretch;
  }

 private:
  std::filesystem::path path_;
  ParquetFile file_;
  uint64_t done_ = 0;
};

}  // namespace

std::unique_ptr<FileStretches> open_stretches(const std::filesystem::path& file,
                                              const DocumentFormat& format) {
  if (format.kind == Kind::parquet) return std::make_unique<ParquetStretches>(file, format.keys());
  const std::string border = format.kind == Kind::jsonl ? "\n" : format.separator;
  if (is_packed(file)) return std::make_unique<PackedStretches>(file, border);
  return std::make_unique<MappedStretches>(file, border);
}

}  // namespace pptrain::corpus
