// Byte pair encoding of words (Sennrich et al., https://aclanthology.org/P16-1162), as the Python package
// `tokenizers` does it: "model" of tokenizer.json.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/text/tokenizer/json_part.h"

namespace pptrain::tokenizer {

// The bytes that a token stands for, each of whose characters stands for a byte, as in GPT-2's vocabularies;
// nothing if another character is in it.
std::optional<std::string> bytes_of_token(std::string_view token);
// Appends the characters that stand for the bytes.
void append_byte_characters(std::string& out, std::string_view bytes);

constexpr int32_t largest_id = (1 << 24) - 1;  // that is accepted

class MergeTable;

class Bpe {
 public:
  struct Scratch;  // what one thread encodes with
  static std::shared_ptr<Scratch> make_scratch();

  Bpe() = default;
  // byte_level: the words are bytes, each a character of the vocabulary. Throws Error that names the place of
  // what is wrong, or not supported: dropout, and prefixes and suffixes of subwords.
  Bpe(const JsonPart& part, bool byte_level);

  // Appends the ids of a word, which is not empty.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

  size_t size() const { return tokens_.size(); }
  std::optional<int32_t> find(const std::string& token) const;
  // The tokens of the vocabulary by id; nothing if an id has none.
  const std::unordered_map<int32_t, std::string>& tokens() const { return tokens_; }

 private:
  void read_vocabulary(const JsonPart& part);
  void read_merges(const JsonPart& part);
  void read_symbols(const JsonPart& part);
  bool cuts_before_space_mark() const;
  void encode_stretch(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;
  void first_symbols(std::string_view word, std::vector<int32_t>& ids) const;
  void append_unknown(std::string_view character, size_t& unknown, std::vector<int32_t>& ids) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<int32_t, std::string> tokens_;
  std::unordered_map<std::string, int32_t> words_;  // ignore_merges: whole words, as bytes if byte_level
  std::shared_ptr<MergeTable> merges_;
  std::vector<int32_t> symbols_;  // by code point, or by byte: the id, or -1
  std::array<int32_t, 256> fallback_{};
  bool byte_level_ = false, byte_fallback_ = false, fuse_unknown_ = false, ignore_merges_ = false;
  bool cut_at_marks_ = false;  // no token has U+2581 behind another character, so no merge crosses its begin
  size_t longest_word_ = 0;
  int32_t unknown_ = -1;
};

}  // namespace pptrain::tokenizer
