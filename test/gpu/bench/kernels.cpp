// Bytes per second of every memory-bound kernel, compared with a copy.
#include <vector>

#include "core/kernels/dry_run.h"
#include "test/gpu/bench/kernel_cases.h"
#include "test/gpu/bench/sections.h"

namespace pptrain::bench {
namespace {

double bytes_moved(const KernelCase& kernel) {
  const auto work = kernel.make(at::kMeta);
  const kernels::DryRun dry;
  work();
  return dry.cost().bytes;
}

}  // namespace

void measure_kernels(Bench& bench, Rows& rows) {
  for (const KernelCase& kernel : kernel_cases(bench.sizes())) {
    rows.add({{"name", kernel.name}}, [&](Json& row) {
      const double bytes = bytes_moved(kernel);
      std::vector<std::function<void()>> sets;
      while (sets.size() < bench.sets(bytes)) sets.push_back(kernel.make(bench.device()));
      const Timing timing = bench.measure([&](int64_t i) { sets[static_cast<size_t>(i) % sets.size()](); });
      row["bytes"] = bytes;
      row["sets"] = sets.size();
      put(row, timing);
      row["bytes_per_s"] = bytes / timing.seconds;
      row["share"] = bytes / timing.seconds / bench.copy().rate();
    });
    bench.reset_memory();
  }
}

}  // namespace pptrain::bench
