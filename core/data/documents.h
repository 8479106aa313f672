// Finds the documents of a token stream, and the slices of them that training takes as samples.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/data/token_dataset.h"

namespace pptrain::data {

// First tokens of documents, ascending from 0, and the number of tokens. Taken from the files' index; without
// one, a document ends at each token `end_id`, and the whole stream is read once. Throws Error if there is
// neither, and for ids outside of the vocabulary.
std::vector<int64_t> document_starts(const TokenDataset& dataset, std::optional<int64_t> end_id);

// Tokens [first, first + length) of one document.
struct DocumentSlice {
  int64_t first = 0;
  int64_t length = 0;
  bool ends = true;    // with its document: its last token has no target
  int64_t prompt = 0;  // its tokens whose next one belongs to a prompt, and is no target
  size_t part = 0;     // which stream, if there are several

  // Tokens with a next one in their document: each token except a document's first is the next one in exactly
  // one slice.
  int64_t followed() const { return length - (ends && length > 0 ? 1 : 0); }
  // Tokens whose next one is a target.
  int64_t targets() const { return followed() - prompt; }
  bool operator==(const DocumentSlice&) const = default;
};

// All slices of a stream, in order: whole documents, or, if a document is longer than `longest`, slices of
// `longest` tokens and the rest. Eight bytes a slice.
class DocumentSlices {
 public:
  DocumentSlices(const std::vector<int64_t>& document_starts, int64_t longest);

  int64_t size() const { return static_cast<int64_t>(starts_.size()) - 1; }
  DocumentSlice operator[](int64_t index) const;  // without prompts, of stream 0

 private:
  // For each slice, and at last the stream's end: its first token, doubled; odd if a document begins there.
  std::vector<int64_t> starts_;
};

}  // namespace pptrain::data
