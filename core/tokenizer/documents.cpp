#include "core/tokenizer/documents.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/io/regular_file.h"
#include "core/io/strict_json.h"

namespace pptrain::tokenizer {
namespace {

constexpr size_t stretch_bytes = size_t{1} << 20;

std::string_view text_of(const io::MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

void read_line(std::string_view line, const Stretch& stretch, const std::string& key,
               const std::function<void(std::string_view)>& sink) {
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
  const auto where = [&] {
    const std::string_view whole = text_of(*stretch.file);
    const auto number = std::count(whole.data(), line.data(), '\n') + 1;
    return fmt::format("{}:{}", stretch.file->path().string(), number);
  };
  nlohmann::json value;
  try {
    value = io::parse_strict_json(line, "line");
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", where(), error.what()));
  }
  if (!value.is_object()) throw Error(fmt::format("{}: not a JSON object", where()));
  const auto found = value.find(key);
  if (found == value.end()) throw Error(fmt::format("{}: the object has no key '{}'", where(), key));
  if (!found->is_string()) throw Error(fmt::format("{}: '{}' is no text", where(), key));
  sink(found->get_ref<const std::string&>());
}

}  // namespace

DocumentSource::DocumentSource(std::vector<std::filesystem::path> files, DocumentFormat format)
    : files_(std::move(files)), format_(std::move(format)) {
  for (const auto& path : files_) {
    if (format_.key.empty() && path.extension() == ".jsonl") {
      throw UsageError(
          fmt::format("{}: a JSONL file needs --key, under which its texts are (--key text)", path.string()));
    }
    bytes_ += io::RegularFile(path).size();
  }
}

std::optional<Stretch> DocumentSource::next() {
  while (!open_ || at_ == open_->bytes().size()) {
    if (file_ == files_.size()) return std::nullopt;
    open_ = std::make_shared<const io::MappedFile>(files_[file_++]);
    at_ = 0;
  }
  const std::string_view text = text_of(*open_);
  const size_t end = stretch_end(text, at_);
  Stretch stretch{open_, text.substr(at_, end - at_)};
  at_ = end;
  return stretch;
}

// Behind the first border from stretch_bytes on.
size_t DocumentSource::stretch_end(std::string_view text, size_t begin) const {
  const std::string_view border = format_.key.empty() ? std::string_view(format_.separator) : "\n";
  if (border.empty() || text.size() - begin <= stretch_bytes) return text.size();
  size_t found =
      text.find(border, begin);  // from here, so that borders that overlap are read as by each_document
  while (found != std::string_view::npos && found + border.size() < begin + stretch_bytes) {
    found = text.find(border, found + border.size());
  }
  return found == std::string_view::npos ? text.size() : found + border.size();
}

void each_document(const Stretch& stretch, const DocumentFormat& format,
                   const std::function<void(std::string_view document)>& sink) {
  const std::string_view border = format.key.empty() ? std::string_view(format.separator) : "\n";
  if (border.empty()) return sink(stretch.text);
  for (std::string_view rest = stretch.text; !rest.empty();) {
    const size_t found = rest.find(border);
    const std::string_view document = rest.substr(0, found);
    rest.remove_prefix(found == std::string_view::npos ? rest.size() : found + border.size());
    if (format.key.empty()) {
      sink(document);
    } else {
      read_line(document, stretch, format.key, sink);
    }
  }
}

}  // namespace pptrain::tokenizer
