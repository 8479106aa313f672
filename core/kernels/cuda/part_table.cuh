// Many tensors in one launch: a table of them, which travels in the kernel's parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pptrain::kernels::cuda {

inline constexpr std::size_t parameter_bytes = 4096;  // of a launch, on every device and toolkit

// Parts and where their work items lie: part k has items [begin(k), ends[k]) of the launch.
template <typename Part>
struct PartTable {
  static constexpr std::size_t most =
      (parameter_bytes - 96 /* other parameters */) / (sizeof(Part) + sizeof(int64_t));
  Part parts[most];
  int64_t ends[most];
  int count;

  __device__ int64_t begin(int part) const { return part == 0 ? 0 : ends[part - 1]; }
  // The part that has the item.
  __device__ int find(int64_t item) const {
    int low = 0;
    int high = count - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (item < ends[middle]) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
};

// Calls run(table, items) for as many parts at a time as a table takes. items_of: of a part; parts without
// items are left out.
template <typename Part, typename Items, typename Run>
void for_tables(std::span<const Part> parts, const Items& items_of, const Run& run) {
  static_assert(sizeof(PartTable<Part>) + 64 <= parameter_bytes);
  PartTable<Part> table{};
  int64_t items = 0;
  for (const Part& part : parts) {
    if (items_of(part) == 0) continue;
    items += items_of(part);
    table.parts[table.count] = part;
    table.ends[table.count++] = items;
    if (table.count < static_cast<int>(PartTable<Part>::most)) continue;
    run(table, items);
    table.count = 0;
    items = 0;
  }
  if (table.count > 0) run(table, items);
}

}  // namespace pptrain::kernels::cuda
