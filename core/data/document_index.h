// Megatron-LM's index of a token file, PREFIX.idx beside PREFIX.bin: the type of the ids and where documents
// begin. All numbers are little-endian:
//
//   char[9] "MMIDIDX\0\0", uint64 version 1, uint8 type of the ids, uint64 sequences, uint64 entries of the
//   last table; int32 length of each sequence, in tokens; int64 byte of the .bin at which each begins;
//   int64 number of the sequence with which each document begins, and after the last the number of sequences.
//
// (megatron/core/datasets/indexed_dataset.py.)
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace pptrain::data {

struct DocumentIndex {
  int token_bytes = 0;  // 1 (uint8), 2 (uint16) or 4 (int32) of an id
  // Tokens before each document, ascending from 0; and of all of them together. Documents without tokens are
  // left out.
  std::vector<int64_t> starts;
};

// PREFIX.bin -> PREFIX.idx.
std::filesystem::path index_of(const std::filesystem::path& token_file);

// The index of a token file of `token_file_bytes` bytes. Throws Error that names the index, the place in it
// and what it should be, unless it is whole, its sequences lie in the token file one after the other and fill
// it, and its documents hold all of them.
DocumentIndex read_document_index(const std::filesystem::path& path, uint64_t token_file_bytes);

}  // namespace pptrain::data
