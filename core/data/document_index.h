// Files that lie beside a token file PREFIX.bin. Megatron-LM's index PREFIX.idx says where documents begin.
// PREFIX.prompts says which tokens are no targets: prompts; a conversation has one before each answer. All
// numbers are little-endian.
//
// PREFIX.idx (megatron/core/datasets/indexed_dataset.py):
//
//   char[9] "MMIDIDX\0\0", uint64 version 1, uint8 type of the ids, uint64 sequences, uint64 entries of the
//   last table. Tables: int32 length of each sequence, in tokens; int64 first byte of each in the
//   .bin; int64 first sequence of each document, and after the last the number of sequences.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "core/data/tokens/token_range.h"

namespace pptrain::data {

struct DocumentIndex {
  int token_bytes = 0;  // 1 (uint8), 2 (uint16) or 4 (int32) of an id
  // Tokens before each document, ascending from 0, and at the end the number of all. Documents without tokens
  // are left out.
  std::vector<int64_t> starts;
  std::vector<tokens::TokenRange> prompts = {};  // if read_prompts() was called
};

// PREFIX.bin -> PREFIX.idx.
std::filesystem::path index_of(const std::filesystem::path& token_file);

// The index of a token file of `token_file_bytes` bytes. Throws Error that names the index, the place in it
// and what it should be, unless it is whole, its sequences lie in the token file one after the other and fill
// it, and its documents hold all of them.
DocumentIndex read_document_index(const std::filesystem::path& path, uint64_t token_file_bytes);

// PREFIX.bin -> PREFIX.prompts: char[8] "PROMPTS\2", uint64 prompts; for each prompt int64 its first token in
// PREFIX.bin and int64 one past its last. Prompts ascend, and each lies within a document of PREFIX.idx.
// Earlier versions wrote, for documents that begin with one prompt: char[8] "PROMPTS\1", uint64 documents,
// uint32 tokens of each one's prompt.
std::filesystem::path prompts_of(const std::filesystem::path& token_file);

// The prompts, without the first tokens of documents, which no position predicts anyway. The documents begin
// at `starts` (ascending, from 0; the last is the end of all). Throws Error that names the file unless it is
// whole, and its prompts lie in documents one after the other.
std::vector<tokens::TokenRange> read_prompts(const std::filesystem::path& path,
                                             std::span<const int64_t> starts);

// The prompts of a stream.
class Prompts {
 public:
  // As read_prompts() has them.
  explicit Prompts(std::vector<tokens::TokenRange> prompts);

  // Tokens of prompts among the tokens [first, last).
  int64_t count(int64_t first, int64_t last) const { return count_before(last) - count_before(first); }
  // labels[i] stands for the token first + i; it becomes ignore_label if that token belongs to a prompt.
  void ignore(int64_t first, std::span<int64_t> labels) const;

 private:
  int64_t count_before(int64_t position) const;

  std::vector<tokens::TokenRange> prompts_;
  std::vector<int64_t> before_;  // of each prompt: tokens of those before it
};

}  // namespace pptrain::data
