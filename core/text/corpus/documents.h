// Files of texts as documents, in chunks that several threads work on. Only this code reads a document.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/word.h"
#include "core/text/corpus/chat.h"
#include "core/text/tokenizer/tokenizer.h"

namespace pptrain::corpus {

// What a document is in a file.
struct DocumentFormat {
  // text:    a file, or what lies between two separators in it, is a document.
  // jsonl:   each line is an object, its text under a key. (jsonlines.org; empty lines are passed over.)
  // parquet: each row is one, its text in a column. No other format has documents.
  // A text or JSONL file whose name ends in .gz or .zst is unpacked.
  config::DataFormat kind = config::DataFormat::text;
  std::string key = "text";     // jsonl, parquet: of the text
  std::string prompt_key = {};  // jsonl, parquet: of a prompt, with the text behind it under completion_key
  std::string completion_key = {};  //
  std::string messages_key = {};    // jsonl, parquet: of a conversation, which `chat` makes a text
  std::shared_ptr<const ChatTemplate> chat = {};  // of these
  std::string tokens_key = {};                    // jsonl, parquet: of the ids of a document
  std::string labels_key = {};                    // of its labels; "": all tokens are targets
  int64_t vocab_size = 0;       // of the model: ids are below it; 0: of any, but for tokens_key
  std::string separator = {};   // text: it stands between documents and belongs to none; "": a file is one
  bool skip_bad_lines = false;  // jsonl: a line without a document is passed over, not an error

  bool has_prompts() const { return !prompt_key.empty(); }
  bool has_messages() const { return !messages_key.empty(); }
  bool has_tokens() const { return !tokens_key.empty(); }
  // Does it say which tokens are targets? Otherwise all are.
  bool marks_targets() const { return has_prompts() || has_messages() || !labels_key.empty(); }
  // The keys that a record must have: prompt and completion, messages, tokens and labels, or text.
  std::vector<std::string> keys() const;
};

struct Document {
  std::string_view prompt = {};               // of a format with prompts
  std::string_view text = {};                 // all, or what follows the prompt
  std::vector<tokenizer::Piece> pieces = {};  // of one with messages: marked pieces are targets
  std::vector<int32_t> ids = {};              // of one with tokens
  std::vector<size_t> borders = {};           // of ids: targets begin, end, begin, ...
};

// Whole documents of one file.
struct Chunk {
  std::filesystem::path file;
  std::shared_ptr<const void> keep;  // what `text` lies in
  std::string_view text;             // of text and jsonl
  // Line number of the byte at `counted_from`, at or before the text's first.
  const char* counted_from = nullptr;
  int64_t line = 1;
  std::vector<std::string> rows;  // of parquet: the format's keys of one row after the other; lists as JSON
  int64_t first_row = 0;          // of parquet
  uint64_t bytes = 0;             // of the file that are done with it
};

// The next chunk of one file, in order: about 1 MB, or a document that is longer. Nothing at the end.
// Throws Error with the file and the reason.
using NextChunk = std::function<std::optional<Chunk>()>;

// Throws Error if the file cannot be read, or lacks a column.
NextChunk open_chunks(const std::filesystem::path& file, const DocumentFormat& format);

// The chunks of all files, in order. A file is opened when the one before has ended.
NextChunk chunks_of(std::vector<std::filesystem::path> files, DocumentFormat format);
// Bytes of all files. Throws Error with the path and the reason if one cannot be read.
uint64_t bytes_of(std::span<const std::filesystem::path> files);

// Calls `sink` with each document. In JSONL, bytes that are no UTF-8 count as U+FFFD, as the tokenizer takes
// them elsewhere, and a byte order mark at the file's beginning is passed over. Each line must be an object
// with what the format wants under each key. Other lines are an Error with file and line, or with
// skip_bad_lines reported to `bad`; a bad row of Parquet is an Error with file and row.
void each_document(const Chunk& chunk, const DocumentFormat& format,
                   const std::function<void(const Document&)>& sink,
                   const std::function<void(const std::string& what)>& bad = {});

}  // namespace pptrain::corpus
