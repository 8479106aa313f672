#include "core/corpus/documents.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/io/regular_file.h"
#include "core/io/strict_json.h"
#include "core/tokenizer/utf8.h"

namespace pptrain::corpus {
namespace {

nlohmann::json parse_line(std::string_view line) {
  if (tokenizer::valid_utf8_prefix(line) == line.size()) return io::parse_strict_json(line, "line");
  std::string repaired;
  tokenizer::append_repaired(repaired, line);
  return io::parse_strict_json(repaired, "line");
}

void read_line(std::string_view line, const Stretch& stretch, const DocumentFormat& format,
               const std::function<void(const Document&)>& sink) {
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
  const auto where = [&] {
    const auto number = std::count(stretch.counted_from, line.data(), '\n') + stretch.line;
    return fmt::format("{}:{}", stretch.file.string(), number);
  };
  nlohmann::json value;
  try {
    value = parse_line(line);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", where(), error.what()));
  }
  if (!value.is_object()) throw Error(fmt::format("{}: not a JSON object", where()));
  const auto text = [&](const std::string& key) -> std::string_view {
    const auto found = value.find(key);
    if (found == value.end()) throw Error(fmt::format("{}: the object has no key '{}'", where(), key));
    if (!found->is_string()) throw Error(fmt::format("{}: '{}' is no text", where(), key));
    return found->get_ref<const std::string&>();
  };
  if (format.has_prompts()) {
    const std::string_view prompt = text(format.prompt_key);
    sink({.prompt = prompt, .text = text(format.completion_key)});
  } else {
    sink({.prompt = {}, .text = text(format.key)});
  }
}

void each_row(const Stretch& stretch, const DocumentFormat& format,
              const std::function<void(const Document&)>& sink) {
  const size_t columns = format.has_prompts() ? 2 : 1;
  for (size_t i = 0; i + columns <= stretch.rows.size(); i += columns) {
    if (format.has_prompts()) {
      sink({.prompt = stretch.rows[i], .text = stretch.rows[i + 1]});
    } else {
      sink({.prompt = {}, .text = stretch.rows[i]});
    }
  }
}

}  // namespace

std::vector<std::string> DocumentFormat::keys() const {
  return has_prompts() ? std::vector{prompt_key, completion_key} : std::vector{key};
}

DocumentSource::DocumentSource(std::vector<std::filesystem::path> files, DocumentFormat format)
    : files_(std::move(files)), format_(std::move(format)) {
  for (const auto& path : files_) bytes_ += io::RegularFile(path).size();
}

std::optional<Stretch> DocumentSource::next() {
  for (;;) {
    if (open_) {
      if (std::optional<Stretch> stretch = open_->next()) return stretch;
      open_.reset();
    }
    if (file_ == files_.size()) return std::nullopt;
    open_ = open_stretches(files_[file_++], format_);
  }
}

void each_document(const Stretch& stretch, const DocumentFormat& format,
                   const std::function<void(const Document&)>& sink) {
  if (format.kind == Kind::parquet) return each_row(stretch, format, sink);
  const bool lines = format.kind == Kind::jsonl;
  const std::string_view border = lines ? std::string_view("\n") : std::string_view(format.separator);
  if (border.empty()) return sink({.prompt = {}, .text = stretch.text});
  for (std::string_view rest = stretch.text; !rest.empty();) {
    const size_t found = rest.find(border);
    const std::string_view document = rest.substr(0, found);
    rest.remove_prefix(found == std::string_view::npos ? rest.size() : found + border.size());
    if (lines) {
      read_line(document, stretch, format, sink);
    } else {
      sink({.prompt = {}, .text = document});
    }
  }
}

}  // namespace pptrain::corpus
