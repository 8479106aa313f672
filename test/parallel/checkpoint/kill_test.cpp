#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "test/parallel/checkpoint/example.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::checkpoint;
using namespace pptrain::test;

// A process saves one step after another (some steps twice) and is killed at random moments. After each kill
// the newest checkpoint is sound and no older than the last time, and no checkpoint had to be passed over.
TEST_CASE("kill -9 while saving leaves a sound checkpoint") {
  const ScratchFolder folder;
  save_example(folder.path(), 1, 1);
  const auto before = std::chrono::steady_clock::now();
  save_example(folder.path(), 1, 1);
  const auto one_save = std::chrono::steady_clock::now() - before;
  std::mt19937 random(5);
  int64_t newest = 1;
  int rounds = 0;
  for (; rounds < 12 || (newest < 5 && rounds < 200); ++rounds) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      try {
        for (int64_t step = newest; step < newest + 1000; ++step) save_example(folder.path(), step, 1, 0, 2);
      } catch (...) {
      }
      ::_exit(1);
    }
    // The wait becomes longer over time, in case the machine has become slower since `one_save`.
    std::this_thread::sleep_for(one_save * static_cast<int64_t>(random() % 3000) / 1000 * (1 + rounds / 10));
    REQUIRE(::kill(child, SIGKILL) == 0);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    std::string reports;
    const auto found =
        find_resumable(folder.path(), [&](const std::string& text) { reports += text + "\n"; });
    REQUIRE(reports.empty());
    REQUIRE(found.has_value());
    const Reader reader(*found);
    REQUIRE(reader.state().step >= newest);
    newest = reader.state().step;
    REQUIRE(reads_back(reader, newest));
  }
  CHECK(newest >= 5);
}
