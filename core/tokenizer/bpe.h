// Byte pair encoding of words (Sennrich et al., https://aclanthology.org/P16-1162), as the Python package
// `tokenizers` does it: "model" of tokenizer.json.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/tokenizer/json_part.h"
#include "core/tokenizer/word_cache.h"

namespace pptrain::tokenizer {

// The merges of a vocabulary: which pair of tokens becomes which, and which pair first.
struct Merge {
  uint32_t rank;  // the lowest goes first
  int32_t id;     // that the pair becomes
};

constexpr uint32_t no_merge = UINT32_MAX;  // as a rank

// A flat hash table with linear probing, at most half full.
class MergeTable {
 public:
  explicit MergeTable(size_t merges = 0) {
    size_t slots = 16;
    while (slots < 2 * merges) slots *= 2;
    slots_.assign(slots, {empty, {no_merge, 0}});
  }

  // Of a pair that is there already the merge is replaced.
  void insert(int32_t left, int32_t right, Merge merge) {
    Slot& slot = slots_[find_slot(key_of(left, right))];
    slot = {key_of(left, right), merge};
  }
  // rank no_merge where the pair stays two.
  Merge find(int32_t left, int32_t right) const { return slots_[find_slot(key_of(left, right))].merge; }

 private:
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  static constexpr uint64_t empty = UINT64_MAX;  // ids are not negative

  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t find_slot(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    size_t at = (key * 0x9e3779b97f4a7c15) >> 32 & mask;
    while (slots_[at].key != key && slots_[at].key != empty) at = (at + 1) & mask;
    return at;
  }

  std::vector<Slot> slots_;
};

// The byte that a character of GPT-2's vocabularies stands for; -1 where it stands for none.
int byte_of_character(uint32_t c);
// The bytes that a token of such characters stands for; nothing where another character is in it.
std::optional<std::string> bytes_of_token(std::string_view token);

constexpr int32_t largest_id = (1 << 24) - 1;  // that is accepted

class Bpe {
 public:
  // What one thread encodes with.
  struct Scratch {
    struct Symbol {
      int32_t id;
      int32_t previous, next;  // -1: none
    };
    struct Candidate {
      uint32_t rank, position;
      int32_t id;
    };
    WordCache cache;
    std::vector<int32_t> ids;
    std::vector<uint32_t> ranks;
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  Bpe() = default;
  // byte_level: the words are bytes, each a character of the vocabulary. Throws Error that names the place of
  // what is wrong, or not supported: dropout, and prefixes and suffixes of subwords.
  Bpe(const JsonPart& part, bool byte_level);

  // Appends the ids of a word, which is not empty.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

  size_t size() const { return tokens_.size(); }
  std::optional<int32_t> find(const std::string& token) const;
  // The tokens of the vocabulary by id; nothing where an id has none.
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
  std::unordered_map<std::string, int32_t> words_;  // ignore_merges: whole words, as bytes where byte_level
  MergeTable merges_;
  std::vector<int32_t> symbols_;  // by code point, or by byte: the id, or -1
  std::array<int32_t, 256> fallback_{};
  bool byte_level_ = false, byte_fallback_ = false, fuse_unknown_ = false, ignore_merges_ = false;
  bool cut_at_marks_ = false;  // no token has U+2581 behind another character, so no merge crosses its begin
  size_t longest_word_ = 0;
  int32_t unknown_ = -1;
};

}  // namespace pptrain::tokenizer
