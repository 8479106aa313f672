// Text to tokens and back, as a tokenizer.json of Hugging Face says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pptrain::tokenizer {

// A part of a text, such as what a chat template puts around a message, or the message.
struct Piece {
  std::string text;
  bool quoted = false;  // special tokens that are written in it are text
  bool marked = false;  // encode_pieces() returns the range of its ids
};

// A token that a file beside tokenizer.json names.
struct NamedToken {
  std::string text;
  std::string place;  // for messages: "FILE: eos_token"
};

// The token of a name such as "eos_token", from the folder's tokenizer_config.json, or else from its
// special_tokens_map.json. Nothing if neither has one. Throws Error that names the file if it is no token.
std::optional<NamedToken> named_token(const std::filesystem::path& folder, const char* name);

// Immutable once it is made: any number of threads may use one at once. Copies share all.
class Tokenizer {
 public:
  // Reads tokenizer.json and, if they lie beside it, tokenizer_config.json, special_tokens_map.json and
  // generation_config.json (for the end of a text). A folder stands for its tokenizer.json. Throws Error that
  // names the file, the place in it, and what is wrong or not supported.
  static Tokenizer load(const std::filesystem::path& path);
  // The text of a tokenizer.json; `name` stands for the file in messages.
  static Tokenizer parse(std::string_view json, const std::string& name);

  // The ids of a text. Bytes that are no UTF-8 count as U+FFFD, as Python's errors="replace" makes them.
  // add_special: with the tokens that the file puts around a text (a "post_processor").
  std::vector<int32_t> encode(std::string_view text, bool add_special) const;
  // The same, appended to `ids`.
  void encode(std::string_view text, bool add_special, std::vector<int32_t>& ids) const;

  // The ids of a text that another one goes on from: without the tokens that the file puts behind a text.
  // What the text itself ends with, such as the end of a turn, stays.
  std::vector<int32_t> encode_prompt(std::string_view text, bool add_special) const;

  // The ids of one text in pieces, appended to `ids`. Returns the ranges of the marked pieces' ids (ids with
  // a byte in one): from the first number up to the second, from the third up to the fourth, and so on,
  // counted from the old end of `ids`.
  std::vector<size_t> encode_pieces(std::span<const Piece> pieces, std::vector<int32_t>& ids) const;
  // Throws UsageError if the file does not say enough for encode_pieces(): it has no decoder, or looks for
  // special tokens in normalized text, in which a quoted piece cannot be told from another.
  void require_pieces() const;

  // The text of ids, always valid UTF-8; ids that are no token are passed over. skip_special: without special
  // tokens.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // Bytes of text that each id stands for, [vocab_size]: 0 for special tokens and for ids that are no token.
  // The bytes of a text's ids add up to the text as it was encoded: normalized, and with the blank that
  // SentencePiece puts before it. Empty if the file has no decoder.
  std::vector<uint32_t> token_bytes() const;

  // The largest id and one.
  int64_t vocab_size() const;
  // What a model's vocabulary needs at least: the largest id, and one, of the tokens that any text may get.
  // Added tokens count only if the file puts them around a text, or if they end one: a text gets other added
  // tokens only if they are written in it. Gemma 3 1B has one such token more than rows.
  int64_t least_vocab_size() const;
  // Whether the ids of a text begin twice with the tokens that the file puts before one: the text has them
  // too.
  bool begins_twice(std::span<const int32_t> ids) const;
  // Throws UsageError that names the first of these ids that a model with `vocab_size` rows does not know.
  void require_known(std::span<const int32_t> ids, int64_t vocab_size) const;
  // Id of a token as it is written in the file.
  std::optional<int32_t> id_of(const std::string& token) const;
  std::optional<std::string> token_of(int32_t id) const;
  bool is_special(int32_t id) const;
  // Ends a text or an answer: named_token's eos_token, or else generation_config.json's only eos_token_id.
  std::optional<int32_t> eos_id() const;
  // Begins a text: named_token's bos_token, if tokenizer.json has it.
  std::optional<int32_t> bos_id() const;
  // All ids at which generation ends: eos_id and those of generation_config.json.
  const std::vector<int32_t>& stop_ids() const;

 private:
  struct Parts;
  explicit Tokenizer(std::shared_ptr<Parts> parts) : parts_(std::move(parts)) {}
  void read_neighbours(const std::filesystem::path& folder);

  std::shared_ptr<Parts> parts_;
};

// The text of tokens that come one by one, as soon as it is certain.
//
// put() and finish() together return decode()'s text of all ids. One exception: if byte tokens that are no
// text follow some that are, decode() drops those too, which put() has already returned. (The method is that
// of the Python package's DecodeStream: the latest ids are decoded behind some before them.)
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
  std::vector<int32_t> ids_;  // ids whose text is out, as far as they matter, and ids that wait
  size_t out_ = 0;            // of `ids_`, from the front
  std::string shown_;         // text of the first `out_`
};

}  // namespace pptrain::tokenizer
