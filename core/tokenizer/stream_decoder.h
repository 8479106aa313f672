// The text of tokens that come one by one, as soon as it is certain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/tokenizer/tokenizer.h"

namespace pptrain::tokenizer {

// What put() and finish() return, one after the other, is what decode() makes of all ids together; only where
// byte tokens that are no text follow some that are, decode() drops those too, which were already out. (The
// method is that of the Python package's DecodeStream: the latest ids are decoded behind some before them.)
class StreamDecoder {
 public:
  // The tokenizer outlives it.
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // The text that the id completes; "" while a character lacks bytes.
  std::string put(int32_t id);
  // The rest: what will not be completed any more. Then another text may begin.
  std::string finish();

 private:
  std::string take(bool all);

  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::vector<int32_t> ids_;  // those whose text is out, as far as they matter, and those that wait
  size_t out_ = 0;            // of `ids_`, from the front
  std::string shown_;         // text of the first `out_`
};

}  // namespace pptrain::tokenizer
