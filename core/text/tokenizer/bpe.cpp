#include "core/text/tokenizer/bpe.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "core/base/error.h"
#include "core/text/tokenizer/unicode.h"

namespace pptrain::tokenizer {

namespace {

// The ids of words that were seen before. One thread's.
//
// Short words of few ids, nearly all that there are, take 32 bytes each; the others lie in a smaller table.
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

}  // namespace

// A flat hash table with linear probing, at most half full.
class MergeTable {
 public:
  explicit MergeTable(size_t merges) {
    size_t slots = 16;
    while (slots < 2 * merges) slots *= 2;
    slots_.assign(slots, {empty, {no_merge, 0}});
  }

  // If the pair is there already, its merge is replaced.
  void insert(int32_t left, int32_t right, Merge merge) {
    Slot& slot = slots_[find_slot(key_of(left, right))];
    slot = {key_of(left, right), merge};
  }
  // rank no_merge if the pair stays two.
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

struct Bpe::Scratch {
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

namespace {

constexpr std::string_view space_mark = "\xe2\x96\x81";  // U+2581, SentencePiece's space
constexpr size_t short_word = 48;                        // symbols up to which a scan is quicker than a heap

// The first 256 characters that are printable stand for themselves, the other bytes for those from U+0100 on:
// https://github.com/openai/gpt-2/blob/master/src/encoder.py
constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}
constexpr std::array<uint32_t, 256> character_of_byte = [] {
  std::array<uint32_t, 256> characters{};
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) characters[byte] = stands_for_itself(byte) ? byte : next++;
  return characters;
}();
constexpr std::array<int, 0x144> byte_table = [] {
  std::array<int, 0x144> bytes{};
  bytes.fill(-1);
  for (uint32_t byte = 0; byte < 256; ++byte) bytes[character_of_byte[byte]] = static_cast<int>(byte);
  return bytes;
}();

bool later(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

// The byte that a character stands for; -1 if it stands for none.
int byte_of_character(uint32_t c) {
  return c < byte_table.size() ? byte_table[c] : -1;
}

}  // namespace

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const CodePoint c = code_point(token, at);
    const int byte = byte_of_character(c.value);
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    at += c.size;
  }
  return bytes;
}

void append_byte_characters(std::string& out, std::string_view bytes) {
  for (const char byte : bytes) append_utf8(out, character_of_byte[static_cast<unsigned char>(byte)]);
}

std::shared_ptr<Bpe::Scratch> Bpe::make_scratch() {
  return std::make_shared<Scratch>();
}

Bpe::Bpe(const JsonPart& part, bool byte_level) : byte_level_(byte_level) {
  part.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
             "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const auto dropout = part.find("dropout")) {
    if (!dropout->value().is_number() || dropout->value().get<double>() != 0) {
      dropout->refuse("dropout is not supported: the same text must give the same tokens");
    }
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto affix = part.find(key);
    if (affix && !affix->text().empty()) affix->refuse("is not supported");
  }
  fuse_unknown_ = part.flag("fuse_unk", false);
  byte_fallback_ = part.flag("byte_fallback", false);
  ignore_merges_ = part.flag("ignore_merges", false);
  read_vocabulary(part.at("vocab"));
  if (const auto unknown = part.find("unk_token")) {
    const auto id = find(unknown->text());
    if (!id) unknown->refuse(fmt::format("'{}' is not in the vocabulary", unknown->text()));
    unknown_ = *id;
  }
  read_symbols(part);
  read_merges(part.at("merges"));
  cut_at_marks_ = !byte_level_ && !ignore_merges_ && cuts_before_space_mark();
}

std::optional<int32_t> Bpe::find(const std::string& token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

void Bpe::read_vocabulary(const JsonPart& part) {
  if (!part.value().is_object()) part.refuse("must be an object");
  for (const auto& item : part.value().items()) {
    // No JsonPart for each entry: there are 100,000 and more.
    const nlohmann::json& value = item.value();
    if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{largest_id}) {
      part.refuse(
          fmt::format("the id {} of '{}' is no integer from 0 to {}", value.dump(), item.key(), largest_id));
    }
    const auto id = value.get<int32_t>();
    const auto [other, added] = tokens_.emplace(id, item.key());
    if (!added) part.refuse(fmt::format("'{}' and '{}' have the same id, {}", other->second, item.key(), id));
    ids_.emplace(item.key(), id);
    if (!ignore_merges_) continue;
    const std::optional<std::string> word =
        byte_level_ ? bytes_of_token(item.key()) : std::optional(item.key());
    if (!word) continue;
    longest_word_ = std::max(longest_word_, word->size());
    words_.emplace(*word, id);
  }
}

void Bpe::read_symbols(const JsonPart& part) {
  symbols_.assign(byte_level_ ? 256 : 128, -1);
  for (const auto& [token, id] : ids_) {
    if (token.empty() || code_point_size(token[0]) != token.size()) continue;
    const uint32_t c = code_point(token, 0).value;
    const int64_t symbol = byte_level_ ? byte_of_character(c) : static_cast<int64_t>(c);
    if (symbol < 0) continue;
    if (static_cast<size_t>(symbol) >= symbols_.size()) symbols_.resize(static_cast<size_t>(symbol) + 1, -1);
    symbols_[static_cast<size_t>(symbol)] = id;
  }
  fallback_.fill(-1);
  for (size_t byte = 0; byte_fallback_ && byte < fallback_.size(); ++byte) {
    fallback_[byte] = find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
  if (byte_fallback_ && byte_level_) part.refuse("byte_fallback together with ByteLevel is not supported");
}

void Bpe::read_merges(const JsonPart& part) {
  if (!part.value().is_array()) part.refuse("must be a list");
  merges_ = std::make_shared<MergeTable>(part.value().size());
  const auto id_of = [&](size_t rank, const std::string& token) {
    const auto id = find(token);
    if (!id) part.refuse(fmt::format("merge {}: '{}' is not in the vocabulary", rank, token));
    return *id;
  };
  for (size_t rank = 0; rank < part.value().size(); ++rank) {
    const nlohmann::json& merge = part.value()[rank];
    std::string left, right;
    if (merge.is_string()) {  // older files: "left right"
      const auto& text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        part.refuse(fmt::format("merge {}: '{}' is no two tokens with a space between them", rank, text));
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else {
      part.refuse(fmt::format("merge {} is no pair of tokens", rank));
    }
    if (left.empty() || right.empty()) part.refuse(fmt::format("merge {} has an empty token", rank));
    merges_->insert(id_of(rank, left), id_of(rank, right),
                    {static_cast<uint32_t>(rank), id_of(rank, left + right)});
  }
}

// A merge across "x|U+2581" would make a token in which U+2581 stands behind another character. (The unknown
// token, too, ends at U+2581, if that is a token.)
bool Bpe::cuts_before_space_mark() const {
  if (!ids_.contains(std::string(space_mark))) return false;
  return std::ranges::none_of(ids_, [](const auto& entry) {
    const std::string& token = entry.first;
    for (size_t at = token.find(space_mark, 1); at != std::string::npos;
         at = token.find(space_mark, at + 1)) {
      if (!std::string_view(token).substr(0, at).ends_with(space_mark)) return true;
    }
    return false;
  });
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  const auto encode_one = [&](std::string_view stretch) {
    if (scratch.cache.find(stretch, ids)) return;
    const size_t before = ids.size();
    encode_stretch(stretch, scratch, ids);
    scratch.cache.insert(stretch, ids.data() + before, ids.size() - before);
  };
  if (!cut_at_marks_) return encode_one(word);
  size_t begin = 0;
  while (begin < word.size()) {
    size_t end = begin;
    while (word.substr(end).starts_with(space_mark)) end += space_mark.size();
    end = std::min(word.find(space_mark, end), word.size());
    encode_one(word.substr(begin, end - begin));
    begin = end;
  }
}

void Bpe::encode_stretch(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (ignore_merges_ && word.size() <= longest_word_) {
    if (const auto found = words_.find(std::string(word)); found != words_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  scratch.ids.clear();
  first_symbols(word, scratch.ids);
  if (scratch.ids.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw Error("tokenizer: a word of more than 2147483647 characters");
  }
  if (scratch.ids.size() <= short_word) {
    merge_short(scratch);
  } else {
    merge_long(scratch);
  }
  ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
}

void Bpe::first_symbols(std::string_view word, std::vector<int32_t>& ids) const {
  size_t unknown = 0;  // characters that wait to become the unknown token
  const auto flush = [&] {
    if (unknown > 0) ids.push_back(unknown_);
    unknown = 0;
  };
  for (size_t at = 0; at < word.size();) {
    uint32_t symbol = static_cast<unsigned char>(word[at]);
    size_t size = 1;
    if (!byte_level_) {
      const CodePoint c = code_point(word, at);
      symbol = c.value;
      size = c.size;
    }
    const int32_t id = symbol < symbols_.size() ? symbols_[symbol] : -1;
    if (id >= 0) {
      flush();
      ids.push_back(id);
    } else {
      append_unknown(word.substr(at, size), unknown, ids);
    }
    at += size;
  }
  flush();
}

// A character that is no token: its bytes, or the unknown token, or nothing. As in the package, bytes come
// before an unknown token that is still waiting.
void Bpe::append_unknown(std::string_view character, size_t& unknown, std::vector<int32_t>& ids) const {
  const auto id_of = [this](char byte) { return fallback_[static_cast<unsigned char>(byte)]; };
  if (byte_fallback_ && std::ranges::all_of(character, [&](char byte) { return id_of(byte) >= 0; })) {
    for (const char byte : character) ids.push_back(id_of(byte));
    return;
  }
  if (unknown_ < 0) return;
  if (unknown > 0 && !fuse_unknown_) ids.push_back(unknown_);
  ++unknown;
}

// The pair of the lowest rank first, the leftmost of equals, until no pair has a merge.
void Bpe::merge_short(Scratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids;
  std::vector<uint32_t>& ranks = scratch.ranks;  // of the pair that begins here
  ranks.resize(ids.size());
  for (size_t i = 0; i + 1 < ids.size(); ++i) ranks[i] = merges_->find(ids[i], ids[i + 1]).rank;
  while (ids.size() > 1) {
    const auto best =
        std::min_element(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(ids.size()) - 1);
    if (*best == no_merge) return;
    const auto at = static_cast<size_t>(best - ranks.begin());
    ids[at] = merges_->find(ids[at], ids[at + 1]).id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    if (at + 1 < ids.size()) ranks[at] = merges_->find(ids[at], ids[at + 1]).rank;
    if (at > 0) ranks[at - 1] = merges_->find(ids[at - 1], ids[at]).rank;
  }
}

// The same by a heap of candidates, in n log n. What a merge makes stale is passed over.
void Bpe::merge_long(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  const auto count = static_cast<int32_t>(scratch.ids.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols.push_back({scratch.ids[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  }
  const auto candidate = [&](int32_t left) {
    const auto& symbol = symbols[static_cast<size_t>(left)];
    if (symbol.next < 0) return Scratch::Candidate{no_merge, 0, 0};
    const Merge merge = merges_->find(symbol.id, symbols[static_cast<size_t>(symbol.next)].id);
    return Scratch::Candidate{merge.rank, static_cast<uint32_t>(left), merge.id};
  };
  const auto push = [&](int32_t left) {
    const Scratch::Candidate next = candidate(left);
    if (next.rank == no_merge) return;
    heap.push_back(next);
    std::ranges::push_heap(heap, later);
  };
  for (int32_t i = 0; i < count; ++i) {
    if (const auto next = candidate(i); next.rank != no_merge) heap.push_back(next);
  }
  std::ranges::make_heap(heap, later);
  while (!heap.empty()) {
    const Scratch::Candidate top = heap.front();
    std::ranges::pop_heap(heap, later);
    heap.pop_back();
    const auto at = static_cast<int32_t>(top.position);
    auto& symbol = symbols[top.position];
    if (symbol.id < 0 || candidate(at).id != top.id || candidate(at).rank == no_merge) continue;
    auto& right = symbols[static_cast<size_t>(symbol.next)];
    symbol.id = top.id;
    symbol.next = right.next;
    right.id = -1;
    if (symbol.next >= 0) symbols[static_cast<size_t>(symbol.next)].previous = at;
    if (symbol.previous >= 0) push(symbol.previous);
    push(at);
  }
  scratch.ids.clear();
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    scratch.ids.push_back(symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace pptrain::tokenizer
