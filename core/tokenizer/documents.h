// Files of text as documents, in stretches that threads work on side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/mapped_file.h"

namespace pptrain::tokenizer {

// What a document is in a file. Neither: the whole file is one.
struct DocumentFormat {
  std::string key;        // JSONL: the text under this key of each line's object
  std::string separator;  // this text stands between documents, and belongs to none
};

// Whole documents of one file.
struct Stretch {
  std::shared_ptr<const io::MappedFile> file;
  std::string_view text;
};

// Hands the files out, stretch by stretch, in order. One thread at a time.
class DocumentSource {
 public:
  // Opens each file once, to see that it can be read. Throws Error with its path and the reason; UsageError
  // where a name ends in .jsonl and no key is given.
  DocumentSource(std::vector<std::filesystem::path> files, DocumentFormat format);

  // About so many bytes at a time, or a document that is longer. Nothing at the end.
  std::optional<Stretch> next();
  uint64_t bytes() const { return bytes_; }  // of all files

 private:
  size_t stretch_end(std::string_view text, size_t begin) const;

  std::vector<std::filesystem::path> files_;
  DocumentFormat format_;
  uint64_t bytes_ = 0;
  size_t file_ = 0;  // the next to open
  std::shared_ptr<const io::MappedFile> open_;
  size_t at_ = 0;  // in the open one
};

// Calls `sink` with each document. Throws Error with file and line where a line is no object with a text
// under the key.
void each_document(const Stretch& stretch, const DocumentFormat& format,
                   const std::function<void(std::string_view document)>& sink);

}  // namespace pptrain::tokenizer
