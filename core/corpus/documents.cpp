#include "core/corpus/documents.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/byte_order_mark.h"
#include "core/base/error.h"
#include "core/io/files.h"
#include "core/io/strict_json.h"
#include "core/tokenizer/unicode.h"

namespace pptrain::corpus {
namespace {

nlohmann::json parse_line(std::string_view line) {
  if (tokenizer::valid_utf8_prefix(line) == line.size()) return io::parse_strict_json(line, "line");
  std::string repaired;
  tokenizer::append_repaired(repaired, line);
  return io::parse_strict_json(repaired, "line");
}

// Nothing of an empty line. `value` holds the document's texts.
std::optional<Document> read_line(std::string_view line, const Chunk& chunk, const DocumentFormat& format,
                                  nlohmann::json& value) {
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) return std::nullopt;
  const auto where = [&] {
    const auto number = std::count(chunk.counted_from, line.data(), '\n') + chunk.line;
    return fmt::format("{}:{}", chunk.file.string(), number);
  };
  try {
    value = parse_line(line);
  } catch (const Error& error) {
    const std::string_view said = error.what();  // "line: not valid ..."
    throw Error(fmt::format("{}: {}", where(), said.substr(said.find(": ") + 2)));
  }
  if (!value.is_object()) throw Error(fmt::format("{}: not a JSON object", where()));
  const auto text = [&](const std::string& key) -> std::string_view {
    const auto found = value.find(key);
    if (found == value.end()) {
      std::vector<std::string> keys;
      for (const auto& item : value.items()) keys.push_back(item.key());
      throw Error(fmt::format("{}: the object has no key '{}'; it has: {}", where(), key,
                              keys.empty() ? "none" : fmt::format("{}", fmt::join(keys, ", "))));
    }
    if (!found->is_string()) throw Error(fmt::format("{}: '{}' is no text", where(), key));
    return found->get_ref<const std::string&>();
  };
  if (!format.has_prompts()) return Document{.prompt = {}, .text = text(format.key)};
  const std::string_view prompt = text(format.prompt_key);
  return Document{.prompt = prompt, .text = text(format.completion_key)};
}

void each_line(const Chunk& chunk, const DocumentFormat& format,
               const std::function<void(const Document&)>& sink,
               const std::function<void(const std::string&)>& bad) {
  const bool at_begin = chunk.line == 1 && chunk.text.data() == chunk.counted_from;  // of the file
  std::string_view rest = at_begin ? without_byte_order_mark(chunk.text) : chunk.text;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    nlohmann::json value;
    std::optional<Document> document;
    try {
      document = read_line(line, chunk, format, value);
    } catch (const Error& error) {
      if (!format.skip_bad_lines)
        throw Error(fmt::format("{} (bad_lines = \"skip\" leaves such lines out)", error.what()));
      if (bad) bad(error.what());
    }
    if (document) sink(*document);
  }
}

void each_row(const Chunk& chunk, const DocumentFormat& format,
              const std::function<void(const Document&)>& sink) {
  const size_t columns = format.has_prompts() ? 2 : 1;
  for (size_t i = 0; i + columns <= chunk.rows.size(); i += columns) {
    if (format.has_prompts()) {
      sink({.prompt = chunk.rows[i], .text = chunk.rows[i + 1]});
    } else {
      sink({.prompt = {}, .text = chunk.rows[i]});
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

std::optional<Chunk> DocumentSource::next() {
  for (;;) {
    if (open_) {
      if (std::optional<Chunk> chunk = open_()) return chunk;
      open_ = nullptr;
    }
    if (file_ == files_.size()) return std::nullopt;
    open_ = open_chunks(files_[file_++], format_);
  }
}

void each_document(const Chunk& chunk, const DocumentFormat& format,
                   const std::function<void(const Document&)>& sink,
                   const std::function<void(const std::string& what)>& bad) {
  if (format.kind == Kind::parquet) return each_row(chunk, format, sink);
  if (format.kind == Kind::jsonl) return each_line(chunk, format, sink, bad);
  const std::string_view border = format.separator;
  if (border.empty()) return sink({.prompt = {}, .text = chunk.text});
  for (std::string_view rest = chunk.text; !rest.empty();) {
    const size_t found = rest.find(border);
    const std::string_view document = rest.substr(0, found);
    rest.remove_prefix(found == std::string_view::npos ? rest.size() : found + border.size());
    sink({.prompt = {}, .text = document});
  }
}

}  // namespace pptrain::corpus
