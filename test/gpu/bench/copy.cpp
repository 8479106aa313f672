#include "test/gpu/bench/sections.h"

namespace pptrain::bench {

void measure_copy(Bench& bench, Rows& rows) {
  rows.add({{"name", "device to device"}}, [&](Json& row) {
    const Bench::Copy& copy = bench.copy();
    row["bytes"] = copy.bytes;
    put(row, copy.timing);
    row["bytes_per_s"] = copy.rate();
  });
}

}  // namespace pptrain::bench
