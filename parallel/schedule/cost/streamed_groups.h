// Parameter groups that a rank has whole at one time if weights are streamed: the rule by which it gathers
// them, and the bytes that follow from it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <vector>

namespace pptrain::schedule {

// At most: the group in use, the next one, and one more if that is small or will be used again at once.
inline constexpr int most_streamed_groups = 3;

// Is the group so small that the next one's gather would not hide behind its passes? `largest`: elements of
// the largest group of the stage.
constexpr bool is_small_group(int64_t elements, int64_t largest) {
  return elements < largest / 8;
}

struct GroupBytes {
  int64_t elements = 0;
  int64_t bytes = 0;  // of what is whole: compute weights or gradients
};

// Bytes of so many groups at most: of two that hide each other's exchange, and a small one between them.
// `largest` as above.
inline int64_t most_streamed_bytes(std::vector<GroupBytes> groups, int64_t largest) {
  std::ranges::sort(groups, std::greater(), &GroupBytes::bytes);
  const auto rest = groups.begin() + std::min<std::ptrdiff_t>(2, std::ssize(groups));
  const auto small = std::find_if(
      rest, groups.end(), [&](const GroupBytes& group) { return is_small_group(group.elements, largest); });
  int64_t bytes = small == groups.end() ? 0 : small->bytes;
  for (auto group = groups.begin(); group != rest; ++group) bytes += group->bytes;
  return bytes;
}

}  // namespace pptrain::schedule
