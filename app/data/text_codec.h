// Text to token ids and back: the part of a tokenizer that generation needs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/job_config.h"
#include "core/text/tokenizer/tokenizer.h"

namespace pptrain::app {

class TextCodec {
 public:
  // Turns the tokens of one text into its bytes, one token at a time.
  class Decoder {
   public:
    virtual ~Decoder() = default;
    // The bytes that the token completes: none if more tokens are needed, e.g. for a character in several
    // tokens.
    virtual std::string next(int64_t token) = 0;
    // Bytes left at the end.
    virtual std::string rest() = 0;
  };

  virtual ~TextCodec() = default;
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  // For a text that continues another: without special tokens around it.
  virtual std::vector<int64_t> encode_completion(std::string_view text) const { return encode(text); }
  virtual std::unique_ptr<Decoder> decoder() const = 0;
  // Ids at which a text ends.
  virtual std::vector<int64_t> stop_ids() const { return {}; }
};

// Every byte is a token (data.format = "text"). Ids from 256 on, which a model may have, are shown as U+FFFD.
std::shared_ptr<const TextCodec> make_byte_codec();

// The job's tokenizer.json: data.tokenizer, else the one next to the weights of model.hf_dir; "" if there is
// none, or if tokens are bytes.
std::filesystem::path tokenizer_of(const config::JobConfig& job);

// Throws UsageError, which begins with `name`, if any text may get ids beyond a model with `vocab_size` rows.
// Added tokens that only some texts have may be beyond them.
void require_rows(const tokenizer::Tokenizer& tokenizer, int64_t vocab_size, const std::string& name);

// The codec of data.tokenizer, else of model.hf_dir, else bytes if the data are text; with data.add_special
// as in training. Null if none of them says how tokens are read: then there are only ids. Throws UsageError
// if the tokenizer is another model's (require_rows). Its encode() throws UsageError if a text has a token
// that the model does not know.
std::shared_ptr<const TextCodec> make_text_codec(const config::JobConfig& job);

}  // namespace pptrain::app
