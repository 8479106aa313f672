// Byte pair encoding of words (Sennrich et al., https://aclanthology.org/P16-1162), as the Python package
// `tokenizers` does it: "model" of tokenizer.json.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/tokenizer/json_part.h"

namespace pptrain::tokenizer {

// The ids of words that were seen before. One thread's.
//
// Each word has one place, by its hash, and the latest word has it: no bookkeeping, and common words win.
// Short words of few ids, nearly all that there are, lie in 32 bytes a piece; the others in a smaller table.
class WordCache {
 public:
  static constexpr size_t longest = 128;  // bytes of a word that is kept

  // Appends the word's ids if it is there.
  bool find(std::string_view word, std::vector<int32_t>& ids) const {
    if (word.size() <= short_bytes) {
      const Key key = key_of(word);
      const Short& place = short_[hash(key) & (short_.size() - 1)];
      if (place.key != key || place.count == 0) return false;
      const size_t before = ids.size();
      ids.resize(before + short_ids);  // three stores are quicker than a loop
      std::memcpy(ids.data() + before, place.ids.data(), sizeof(place.ids));
      ids.resize(before + place.count - 1);
      return true;
    }
    if (word.size() > longest) return false;
    const Long& place = long_[hash(word) & (long_.size() - 1)];
    if (place.word != word) return false;
    ids.insert(ids.end(), place.ids.begin(), place.ids.end());
    return true;
  }

  // Keeps the ids of a word that find() did not have.
  void insert(std::string_view word, const int32_t* ids, size_t count) {
    if (word.size() <= short_bytes && count <= short_ids) {
      const Key key = key_of(word);
      Short& place = short_[hash(key) & (short_.size() - 1)];
      place.key = key;
      place.count = static_cast<uint32_t>(count) + 1;
      std::copy_n(ids, count, place.ids.begin());
    } else if (word.size() > short_bytes && word.size() <= longest) {
      Long& place = long_[hash(word) & (long_.size() - 1)];
      place.word = word;
      place.ids.assign(ids, ids + count);
    }
  }

 private:
  static constexpr size_t short_bytes = 15, short_ids = 3;
  struct Key {  // the bytes, zeros, and the length in the last byte
    uint64_t low, high;
    bool operator==(const Key&) const = default;
  };
  struct Short {
    Key key{};
    std::array<int32_t, short_ids> ids{};
    uint32_t count = 0;  // and one; 0: nothing here
  };
  struct Long {
    std::string word;
    std::vector<int32_t> ids;
  };

  template <typename T>
  static uint64_t load(const char* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
  // Loads that overlap, so that no byte beyond the word is read.
  static Key key_of(std::string_view word) {
    const char* const from = word.data();
    const size_t size = word.size();
    Key key{0, uint64_t{size} << 56};
    if (size >= 8) {
      key.low = load<uint64_t>(from);
      if (size > 8) key.high |= load<uint64_t>(from + size - 8) >> 8 * (16 - size);
    } else if (size >= 4) {
      key.low = load<uint32_t>(from) | load<uint32_t>(from + size - 4) << 8 * (size - 4);
    } else if (size > 0) {
      key.low = load<uint8_t>(from) | load<uint8_t>(from + size / 2) << 8 * (size / 2) |
                load<uint8_t>(from + size - 1) << 8 * (size - 1);
    }
    return key;
  }
  static uint64_t mix(uint64_t value) {
    value *= 0x9e3779b97f4a7c15;
    return value ^ value >> 32;
  }
  static uint64_t hash(const Key& key) { return mix(mix(key.low) + key.high); }
  static uint64_t hash(std::string_view word) {
    uint64_t value = word.size();
    for (size_t at = 0; at < word.size(); at += 8) {
      uint64_t next = 0;
      std::memcpy(&next, word.data() + at, std::min<size_t>(8, word.size() - at));
      value = mix(value + next);
    }
    return value;
  }

  std::vector<Short> short_ = std::vector<Short>(1 << 16);
  std::vector<Long> long_ = std::vector<Long>(1 << 13);
};

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
// Appends the characters that stand for the bytes.
void append_byte_characters(std::string& out, std::string_view bytes);

constexpr int32_t largest_id = (1 << 24) - 1;  // that is accepted

// Throws Error that names the model where it is not BPE.
void require_bpe(const JsonPart& model);

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
