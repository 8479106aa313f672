// Files of text to a token file, on several threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "core/tokenizer/documents.h"
#include "core/tokenizer/token_writer.h"
#include "core/tokenizer/tokenizer.h"

namespace pptrain::tokenizer {

struct TokenizeOptions {
  DocumentFormat format;
  bool add_special = true;        // the tokens that tokenizer.json puts around a text
  std::optional<int32_t> end_id;  // behind each document that does not end with it already
  int threads = 1;
};

struct TokenizeProgress {
  uint64_t bytes = 0, total_bytes = 0;  // of the files
  int64_t documents = 0, tokens = 0;    // written so far
  int64_t empty = 0;                    // documents without a text or a token, which are left out
};

// Writes the documents of all files, in order, and finishes the writer. `report` is called now and then, by
// one thread at a time. Throws the first Error of any thread. The result does not depend on the number of
// threads.
TokenizeProgress tokenize_files(const Tokenizer& tokenizer, const std::vector<std::filesystem::path>& files,
                                const TokenizeOptions& options, TokenWriter& writer,
                                const std::function<void(const TokenizeProgress&)>& report);

}  // namespace pptrain::tokenizer
