// Token files as one stream of ids, memory-mapped and never copied whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/config/word.h"
#include "core/data/document_index.h"
#include "core/io/files.h"
#include "core/io/mapped_file.h"

namespace pptrain::data {

// text: every byte is a token (vocabulary 256).
// bin:  headerless little-endian ids of the type declared in the job.
// llmc: llm.c's files: a header of 256 int32 (magic, version, token count), then ids. Magic 20240520
//       version 1 has uint16 ids (GPT-2), magic 20240801 version 7 has uint32 ids (Llama 3).
// megatron: ids without a header, of the type that PREFIX.idx beside PREFIX.bin says, and prompts if there is
//       a PREFIX.prompts (document_index.h).
// npy:  NumPy's array of integers of one dimension.
// random: 2^48 uniform ids without files: token i is split_mix(seed ^ split_mix(i)) modulo vocab_size.
// Texts (jsonl, parquet) are refused: a tokenizer makes them tokens first.
using Format = config::DataFormat;

struct Source {
  std::vector<std::string> paths;  // files, folders and patterns (source_files.h), one stream together
  Format format = Format::text;
  int token_bytes = 2;  // bin: 2 (uint16) or 4 (uint32)
  uint64_t seed = 0;    // random
};

// The files that a source stands for, in their order. Throws Error if there are none.
std::vector<std::filesystem::path> token_files(const Source& source);
// These and the indices beside them: all that the data depend on.
std::vector<std::filesystem::path> data_files(const Source& source);

// Does the file begin with magic number and version of llm.c's format?
bool has_llmc_header(const io::RegularFile& file);

// A stream of tokens, or a part of one. Copies share the mapped files.
class TokenDataset {
 public:
  // Ids of at least `vocab_size` are an error when they are read. Throws Error: nothing there, a size that
  // does not fit the format, a wrong header.
  TokenDataset(const Source& source, int64_t vocab_size);

  int64_t size() const { return end_ - begin_; }
  // Sample i is tokens [i*seq_len, i*seq_len + seq_len] inclusive: seq_len inputs and, one further on, their
  // targets.
  int64_t samples(int64_t seq_len) const { return size() > seq_len ? (size() - 1) / seq_len : 0; }
  // Reads out.size() tokens from `first` on. Throws Error that names the file, the position in it, the id and
  // vocab_size when an id is out of range.
  void read(int64_t first, std::span<int64_t> out) const;
  // The tokens [first, last) as a stream of their own.
  TokenDataset slice(int64_t first, int64_t last) const;
  // Whether the files say where their documents lie. If so, document_starts() are their first tokens,
  // ascending from 0, and size(). A document begins or ends at each end of a slice.
  bool has_index() const { return document_starts_ != nullptr; }
  std::vector<int64_t> indexed_documents() const;
  // Tokens of prompts among [first, last). ignore_prompts() ignores their labels; labels[i] is the token
  // first + i. A document's first token does not count (document_index.h).
  int64_t prompt_tokens(int64_t first, int64_t last) const;
  void ignore_prompts(int64_t first, std::span<int64_t> labels) const;
  // Documents, and those without a target: only prompts follow their first tokens. For data with has_index();
  // zeros if there are no prompts.
  struct DocumentCount {
    int64_t all = 0, without_targets = 0;
  };
  DocumentCount count_documents() const;
  // What the source was given as, for messages.
  const std::string& path() const { return path_; }

 private:
  struct FileSpan {
    std::shared_ptr<const io::MappedFile> file;
    std::span<const std::byte> ids;
    int token_bytes = 1;
    bool is_signed = false;
    int64_t begin = 0;  // position of the first token in the stream
    int64_t count = 0;
  };
  // `documents` is set for a file with an index.
  static FileSpan open_file(const std::filesystem::path& path, const Source& source,
                            DocumentIndex& documents);
  void read_random(int64_t position, std::span<int64_t> out) const;
  void read_span(const FileSpan& span, int64_t first, std::span<int64_t> out) const;

  std::string path_;
  int64_t vocab_size_ = 0;
  std::vector<FileSpan> spans_;
  std::optional<uint64_t> random_seed_;
  std::shared_ptr<const std::vector<int64_t>> document_starts_;  // of the whole stream, and its end
  std::shared_ptr<const Prompts> prompts_;                       // of the whole stream; null: none
  int64_t begin_ = 0;
  int64_t end_ = 0;
};

// Takes the last floor(val_fraction * tokens) tokens off the stream for validation, so that training never
// sees them; nothing with 0. Throws UsageError unless val_fraction is in [0, 1).
std::optional<TokenDataset> split_off(TokenDataset& train, double val_fraction);

}  // namespace pptrain::data
