// What a transport that makes its groups itself calls them.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

namespace pptrain::comm {

// Mixes bits, so that numbers made of others do not meet (the finaliser of SplitMix64, Steele et al. 2014).
inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Of the groups made of one communicator, by one rank of it.
class GroupNumbers {
 public:
  // Of the next group of `members`: the same on all of them, and another one than of other lists and of
  // earlier groups of the same list.
  uint64_t next(std::span<const int> members) {
    uint64_t list = members.size();
    for (const int member : members) list = mix(list + static_cast<uint64_t>(member) + 1);
    return mix(list + ++made_[list]);
  }

 private:
  std::unordered_map<uint64_t, uint64_t> made_;  // groups, by their list
};

}  // namespace pptrain::comm
