// Token files with an index of their documents, in Megatron-LM's format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "core/data/tokens/token_range.h"
#include "core/io/files.h"

namespace pptrain::corpus {

// PREFIX.idx, all little-endian: "MMIDIDX\0\0"; uint64 version, 1; uint8 type of an id (8: uint16, 4: int32);
// uint64 count of sequences; uint64 count of documents and one. Tables: int32 length of each sequence in
// tokens; int64 its first byte in PREFIX.bin; int64 the first sequence of each document, and one beyond the
// last. (Megatron-LM, megatron/core/datasets/indexed_dataset.py.) A document is one sequence, unless it has
// more than 2^31 - 1 tokens.
//
// PREFIX.prompts, if some tokens are no targets: char[8] "PROMPTS\2" and their ranges
// (core/data/document_index.h).
//
// All are written under other names, synced and renamed by finish(); without it they are removed.
class TokenWriter {
 public:
  // token_bytes: 2 (uint16) or 4 (int32). Throws UsageError if a file is there already and must not be
  // overwritten, Error if none can be made.
  TokenWriter(const std::filesystem::path& prefix, int token_bytes, bool overwrite);
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  // Documents one after the other, and how many tokens each has (more than none). Ids fit token_bytes.
  // `prompts`: which of `ids` are no targets, ascending, each range within a document.
  void add(std::span<const int32_t> ids, std::span<const int64_t> lengths,
           std::span<const tokens::TokenRange> prompts = {});
  void finish();

  int64_t documents() const { return static_cast<int64_t>(document_ends_.size()); }
  int64_t tokens() const { return tokens_; }

 private:
  void write_index();
  void write_prompts();

  std::filesystem::path bin_, idx_, prompts_;
  int token_bytes_;
  std::unique_ptr<io::OutputFile> out_;
  int64_t tokens_ = 0;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> document_ends_;      // in sequences
  std::vector<tokens::TokenRange> ranges_;  // of prompts
  std::vector<uint16_t> narrow_;
  bool finished_ = false;
};

}  // namespace pptrain::corpus
