#include "app/launch/spares.h"

#include <atomic>

#include "core/base/process.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/support/catch.h"

using namespace pptrain;

namespace {

// What the spare process of two returns if it is asked to stop. Its end lets rank 0 go on, or rank 0 tells it
// `code` after five seconds.
int end_of_spare(bool has_agent, int code, bool waits) {
  comm::Launch launch;
  launch.has_agent = has_agent;
  std::atomic<int> returned = -1;
  comm::run_thread_ranks(2, [&](comm::Communicator& processes) {
    if (processes.rank() == 1) {
      returned = app::await_end(processes, launch, [] { return true; });
    } else {
      const auto begun = std::chrono::steady_clock::now();
      while (waits && returned < 0 && std::chrono::steady_clock::now() - begun < std::chrono::seconds(5))
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      app::tell_spares(processes, 1, code);
    }
  });
  return returned;
}

}  // namespace

TEST_CASE("a spare process ends as rank 0 does") {
  CHECK(end_of_spare(/*has_agent=*/true, exit_done, /*waits=*/false) == exit_done);
  CHECK(end_of_spare(/*has_agent=*/false, exit_failed, /*waits=*/false) == exit_failed);
}

TEST_CASE("a spare process whose agent asks for its end does not wait for a long step") {
  CHECK(end_of_spare(/*has_agent=*/true, exit_failed, /*waits=*/true) == exit_stopped);
}
