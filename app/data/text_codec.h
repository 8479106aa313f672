// Between text and token ids: what generation needs of a tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/job_config.h"
#include "core/tokenizer/tokenizer.h"

namespace pptrain::app {

class TextCodec {
 public:
  // Turns the tokens of one text into its bytes, one token at a time.
  class Decoder {
   public:
    virtual ~Decoder() = default;
    // The bytes that the token completes: none where more tokens are needed, of a character in several for
    // instance.
    virtual std::string next(int64_t token) = 0;
    // What is left at the end.
    virtual std::string rest() = 0;
  };

  virtual ~TextCodec() = default;
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  // Of a text that goes on from another: without special tokens around it.
  virtual std::vector<int64_t> encode_completion(std::string_view text) const { return encode(text); }
  virtual std::unique_ptr<Decoder> decoder() const = 0;
  // At each of which a text ends.
  virtual std::vector<int64_t> stop_ids() const { return {}; }
};

// Every byte is a token (data.format = "text"). Ids from 256 on, which a model may have, are shown as U+FFFD.
std::shared_ptr<const TextCodec> make_byte_codec();

// The job's tokenizer.json: data.tokenizer, or else the one beside the weights of model.hf_dir; "" where
// there is none, or tokens are bytes.
std::filesystem::path tokenizer_of(const config::JobConfig& job);

// Throws UsageError, which begins with `name`, where any text may become ids that a model with `vocab_size`
// rows does not know. Added tokens that only some texts have may be beyond it.
void require_rows(const tokenizer::Tokenizer& tokenizer, int64_t vocab_size, const std::string& name);

// That of the job's tokens, with data.add_special as training took them: data.tokenizer, or else what
// model.hf_dir has beside its weights, or else bytes where the data are text; null where none of them says
// how tokens are read: then there are ids alone. Throws UsageError where the tokenizer is another model's
// (require_rows). Its encode() throws UsageError where a text has a token that the model does not know.
std::shared_ptr<const TextCodec> make_text_codec(const config::JobConfig& job);

}  // namespace pptrain::app
