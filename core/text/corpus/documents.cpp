#include "core/text/corpus/documents.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/io/files.h"
#include "core/io/strict_json.h"
#include "core/text/corpus/foreign_text.h"
#include "core/text/corpus/messages.h"
#include "core/text/tokenizer/unicode.h"

namespace pptrain::corpus {
namespace {

constexpr int deepest = 512;  // of what stands beside the text; the parser keeps no call for a level

// Throws Error without a place.
nlohmann::json parse(std::string_view text) {
  std::string repaired;
  if (tokenizer::valid_utf8_prefix(text) < text.size()) {
    tokenizer::append_repaired(repaired, text);
    text = repaired;
  }
  try {
    return io::parse_strict_json(text, "line", deepest);
  } catch (const Error& error) {
    const std::string_view said = error.what();  // "line: not valid ..."
    throw Error(std::string(said.substr(said.find(": ") + 2)));
  }
}

constexpr int64_t ignored_label = -100;  // as PyTorch's cross_entropy has it

// A value of a record, by its key; null if it has none.
using Values = std::function<const nlohmann::json&(const std::string& key)>;

std::string_view text_of(const nlohmann::json& value, const std::string& key) {
  if (!value.is_string()) throw Error(fmt::format("'{}' is no text", key));
  return value.get_ref<const std::string&>();
}

Document conversation_of(const nlohmann::json& list, const DocumentFormat& format) {
  if (!list.is_array()) throw Error(fmt::format("'{}' is no list of messages", format.messages_key));
  return {.pieces = format.chat->render(messages_of(list, *format.chat))};
}

std::vector<int64_t> integers_of(const nlohmann::json& list, const std::string& key) {
  if (!list.is_array()) throw Error(fmt::format("'{}' is no list of integers", key));
  std::vector<int64_t> values;
  for (const nlohmann::json& value : list) {
    if (!value.is_number_integer())
      throw Error(fmt::format("'{}': element {} is no integer", key, values.size()));
    values.push_back(value.get<int64_t>());
  }
  return values;
}

// Borders of the targets. A label is its token, or none.
std::vector<size_t> borders_of(const std::vector<int64_t>& ids, const std::vector<int64_t>& labels,
                               const DocumentFormat& format) {
  const std::string& key = format.labels_key;
  if (labels.size() != ids.size())
    throw Error(fmt::format("'{}' has {} elements, but '{}' has {}", key, labels.size(), format.tokens_key,
                            ids.size()));
  std::vector<size_t> borders;
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool target = labels[i] != ignored_label;
    if (target && labels[i] != ids[i])
      throw Error(fmt::format("'{}': element {} is {}, neither {} nor the token, {}", key, i, labels[i],
                              ignored_label, ids[i]));
    if (target == (borders.size() % 2 == 0)) borders.push_back(i);
  }
  if (borders.size() % 2 == 1) borders.push_back(ids.size());
  return borders;
}

Document tokens_of(const Values& values, const DocumentFormat& format) {
  const std::vector<int64_t> ids = integers_of(values(format.tokens_key), format.tokens_key);
  Document document;
  for (const int64_t id : ids) {
    if (id < 0 || id >= format.vocab_size)
      throw Error(fmt::format("'{}': element {} is {}, but model.vocab_size is {}", format.tokens_key,
                              document.ids.size(), id, format.vocab_size));
    document.ids.push_back(static_cast<int32_t>(id));
  }
  document.borders = format.labels_key.empty()
                         ? std::vector<size_t>{0, ids.size()}
                         : borders_of(ids, integers_of(values(format.labels_key), format.labels_key), format);
  return document;
}

// Views of the values.
Document document_of(const Values& values, const DocumentFormat& format) {
  if (format.has_tokens()) return tokens_of(values, format);
  if (format.has_messages()) return conversation_of(values(format.messages_key), format);
  if (!format.has_prompts()) return {.text = text_of(values(format.key), format.key)};
  return {.prompt = text_of(values(format.prompt_key), format.prompt_key),
          .text = text_of(values(format.completion_key), format.completion_key)};
}

// `value` holds the document's texts. Throws Error without a place.
Document read_line(std::string_view line, const DocumentFormat& format, nlohmann::json& value) {
  value = parse(line);
  if (!value.is_object()) throw Error("not a JSON object");
  if (format.has_messages()) check_record(value);
  const auto under = [&](const std::string& key) -> const nlohmann::json& {
    if (const auto found = value.find(key); found != value.end()) return *found;
    std::vector<std::string> keys;
    for (const auto& item : value.items()) keys.push_back(item.key());
    throw Error(fmt::format("the object has no key '{}'; it has: {}", key,
                            keys.empty() ? "none" : fmt::format("{}", fmt::join(keys, ", "))));
  };
  return document_of(under, format);
}

std::string place_of(const Chunk& chunk, std::string_view line) {
  const auto number = std::count(chunk.counted_from, line.data(), '\n') + chunk.line;
  return fmt::format("{}:{}", chunk.file.string(), number);
}

void each_line(const Chunk& chunk, const DocumentFormat& format,
               const std::function<void(const Document&)>& sink,
               const std::function<void(const std::string&)>& bad) {
  const bool at_begin = chunk.line == 1 && chunk.text.data() == chunk.counted_from;  // of the file
  std::string_view rest = at_begin ? without_byte_order_mark(chunk.text) : chunk.text;
  if (at_begin) refuse_json(chunk.file, rest.substr(0, rest.find('\n')));
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    nlohmann::json value;
    std::optional<Document> document;
    try {
      document = read_line(line, format, value);
    } catch (const Error& error) {
      const std::string what = fmt::format("{}: {}", place_of(chunk, line), error.what());
      if (!format.skip_bad_lines)
        throw Error(fmt::format("{} (bad_lines = \"skip\" leaves such lines out)", what));
      if (bad) bad(what);
    }
    if (document) sink(*document);
  }
}

void each_row(const Chunk& chunk, const DocumentFormat& format,
              const std::function<void(const Document&)>& sink) {
  const std::vector<std::string> keys = format.keys();
  std::vector<nlohmann::json> cells(keys.size());
  const auto under = [&](const std::string& key) -> const nlohmann::json& {
    return cells[static_cast<size_t>(std::ranges::find(keys, key) - keys.begin())];
  };
  const bool lists = format.has_messages() || format.has_tokens();
  for (size_t row = 0; (row + 1) * keys.size() <= chunk.rows.size(); ++row) {
    std::optional<Document> document;
    try {
      for (size_t i = 0; i < keys.size(); ++i) {
        const std::string& cell = chunk.rows[row * keys.size() + i];
        cells[i] = lists ? parse(cell) : nlohmann::json(cell);
      }
      document = document_of(under, format);
    } catch (const Error& error) {
      throw Error(fmt::format("'{}': row {}: {}", chunk.file.string(),
                              chunk.first_row + static_cast<int64_t>(row), error.what()));
    }
    sink(*document);
  }
}

}  // namespace

std::vector<std::string> DocumentFormat::keys() const {
  if (has_tokens()) return labels_key.empty() ? std::vector{tokens_key} : std::vector{tokens_key, labels_key};
  if (has_messages()) return {messages_key};
  return has_prompts() ? std::vector{prompt_key, completion_key} : std::vector{key};
}

uint64_t bytes_of(std::span<const std::filesystem::path> files) {
  uint64_t bytes = 0;
  for (const auto& path : files) bytes += io::RegularFile(path).size();
  return bytes;
}

NextChunk chunks_of(std::vector<std::filesystem::path> files, DocumentFormat format) {
  return [files = std::move(files), format = std::move(format), file = size_t{0},
          open = NextChunk()]() mutable -> std::optional<Chunk> {
    for (;;) {
      if (open) {
        if (std::optional<Chunk> chunk = open()) return chunk;
        open = nullptr;
      }
      if (file == files.size()) return std::nullopt;
      open = open_chunks(files[file++], format);
    }
  };
}

void each_document(const Chunk& chunk, const DocumentFormat& format,
                   const std::function<void(const Document&)>& sink,
                   const std::function<void(const std::string& what)>& bad) {
  if (format.kind == config::DataFormat::parquet) return each_row(chunk, format, sink);
  if (format.kind == config::DataFormat::jsonl) return each_line(chunk, format, sink, bad);
  const std::string_view border = format.separator;
  if (border.empty()) return sink({.text = chunk.text});
  for (std::string_view rest = chunk.text; !rest.empty();) {
    const size_t found = rest.find(border);
    const std::string_view document = rest.substr(0, found);
    rest.remove_prefix(found == std::string_view::npos ? rest.size() : found + border.size());
    sink({.text = document});
  }
}

}  // namespace pptrain::corpus
