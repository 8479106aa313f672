// The ids of words that were seen before. One thread's.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace pptrain::tokenizer {

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

}  // namespace pptrain::tokenizer
