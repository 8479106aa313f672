// core/base/host_memory.h: the next microbatch reuses the blocks that a thread frees, without page faults.
#include "core/base/host_memory.h"

#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "test/support/catch.h"

using namespace pptrain;

namespace {

struct Free {
  void operator()(void* block) const { std::free(block); }
};

int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

// Allocates a rank's memory for two microbatches of four layers, 120 MiB; returns the page faults.
int64_t hold_activations() {
  const int64_t before = page_faults();
  std::vector<std::unique_ptr<void, Free>> blocks;
  for (int layer = 0; layer < 8; ++layer) {
    for (const size_t mib : {1, 3, 1, 1, 6, 3}) {
      blocks.emplace_back(std::aligned_alloc(64, mib << 20));
      std::memset(blocks.back().get(), 1, mib << 20);
    }
  }
  return page_faults() - before;
}

}  // namespace

// Sanitizers bring a heap of their own.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("a thread's freed memory stays with it") {
  keep_freed_memory();
  int64_t first = 0, last = 0;
  std::thread([&] {
    first = hold_activations();
    for (int step = 0; step < 4; ++step) last = hold_activations();
  }).join();
  CHECK(first > 1000);
  CHECK(last < first / 20);
}
#endif
