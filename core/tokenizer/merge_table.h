// The merges of a vocabulary: which pair of tokens becomes which, and which pair first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pptrain::tokenizer {

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

}  // namespace pptrain::tokenizer
