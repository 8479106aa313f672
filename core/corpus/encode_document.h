// The tokens of one document: the same for token files and for caches.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/corpus/documents.h"
#include "core/tokenizer/tokenizer.h"

namespace pptrain::corpus {

struct EncodeOptions {
  bool add_special = true;        // the tokens that tokenizer.json puts around a text
  std::optional<int32_t> end_id;  // behind each document that does not end with it already
};

struct EncodedDocument {
  int64_t tokens = 0;   // 0: without a text, or a token; nothing is appended then
  uint32_t prompt = 0;  // of these, the first ones
};

// Appends the document's tokens to `ids`. A prompt begins as a text does, with the tokens that the file puts
// before one (Tokenizer::encode_prompt), as generation reads it too; what follows is encoded by itself,
// without any.
EncodedDocument encode_document(const tokenizer::Tokenizer& tokenizer, const Document& document,
                                bool has_prompt, const EncodeOptions& options, std::vector<int32_t>& ids);

}  // namespace pptrain::corpus
