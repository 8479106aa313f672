// Files of texts to a token file, on several threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/text/corpus/documents.h"
#include "core/text/corpus/token_writer.h"
#include "core/text/tokenizer/tokenizer.h"

namespace pptrain::corpus {

// What tokens are made of, and how.
struct TokenizeRequest {
  std::vector<std::filesystem::path> files = {};  // in order
  std::filesystem::path tokenizer = {};           // tokenizer.json, or its folder; "": the format has tokens
  DocumentFormat format = {};
  bool add_special = true;  // the tokens that tokenizer.json puts around a text
  // Behind each text that does not end with it already; not behind conversations and tokens. None: no token,
  // but in a cache the tokenizer's own (eos_id), if it has one.
  std::optional<int32_t> end_id = {};
  int64_t max_tokens = 0;  // documents are truncated to so many; 0: none is
  int threads = 1;
};

struct TokenizeProgress {
  uint64_t bytes = 0, total_bytes = 0;  // of the files
  uint64_t text_bytes = 0;              // of the documents' texts, as templates write them; 0 for tokens
  int64_t documents = 0, tokens = 0;    // written so far
  int64_t prompt_tokens = 0;            // of these tokens, those that are no targets
  int64_t truncated = 0;                // documents
  int64_t without_targets = 0;          // documents none of whose tokens is a target, first tokens aside
  int64_t begun_twice = 0;              // documents whose text has what add_special puts before it
  int64_t empty = 0;                    // documents without a text or a token, which are left out
  int64_t bad = 0;                      // lines without a document (DocumentFormat::skip_bad_lines)
  std::string first_bad = {};           // the place of the first of these, and what is wrong there
  std::optional<int32_t> end_id = {};   // the token behind each document
};

// Writes the documents of all files, in order, and finishes the writer. `tokenizer`: null if the format has
// tokens, otherwise of request.tokenizer. `report` is called now and then, by one thread at a time; an
// exception of it ends the work. Throws the first Error of any thread. The result does not depend on the
// number of threads. UsageError if there is no document with a text.
TokenizeProgress tokenize_files(const tokenizer::Tokenizer* tokenizer, const TokenizeRequest& request,
                                TokenWriter& writer,
                                const std::function<void(const TokenizeProgress&)>& report);

// The first documents of the first and of the last file, as tokenize_files() will get them. If some tokens
// are no targets, also what becomes of them: documents, truncated, without_targets. `whole`: these are all.
// Throws as tokenize_files() does, but not if there is no document. `tokenizer`: null for lists of tokens,
// and if all tokens are targets.
struct Sample {
  TokenizeProgress progress;
  bool whole = true;
};
Sample tokenize_sample(const tokenizer::Tokenizer* tokenizer, const TokenizeRequest& request);

}  // namespace pptrain::corpus
