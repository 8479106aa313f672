// Where the documents of a token stream lie, and the slices of them that training takes as samples.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/data/token_dataset.h"

namespace pptrain::data {

// Where documents begin, ascending from 0, and the number of tokens: of an index where the files have one,
// else behind each token `end_id`. Then all of the stream is read once. Throws Error where there is neither,
// and for ids outside of the vocabulary.
std::vector<int64_t> document_starts(const TokenDataset& dataset, std::optional<int64_t> end_id);

// Tokens [first, first + length) of one document.
struct DocumentSlice {
  int64_t first = 0;
  int64_t length = 0;
  bool ends = true;    // with its document: its last token has no target
  int64_t prompt = 0;  // of its tokens, those whose next one is of a prompt, and no target
  size_t part = 0;     // of which stream, where there are several

  // Tokens with one behind them in their document: each but a document's first is behind one of one slice.
  int64_t followed() const { return length - (ends && length > 0 ? 1 : 0); }
  // Those whose next one is a target.
  int64_t targets() const { return followed() - prompt; }
  bool operator==(const DocumentSlice&) const = default;
};

// All slices of a stream, in order: documents, and of one that is longer than `longest` slices of `longest`
// with what is left behind them. Eight bytes a slice.
class DocumentSlices {
 public:
  DocumentSlices(const std::vector<int64_t>& document_starts, int64_t longest);

  int64_t size() const { return static_cast<int64_t>(starts_.size()) - 1; }
  DocumentSlice operator[](int64_t index) const;  // without prompts, of stream 0

 private:
  // Of each slice, and at last of the stream: its first token, doubled; odd where a document begins.
  std::vector<int64_t> starts_;
};

}  // namespace pptrain::data
