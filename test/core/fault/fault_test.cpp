#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/fault/loss_watch.h"
#include "core/fault/shutdown.h"
#include "test/support/catch.h"

using pptrain::fault::AnomalyGuard;
using pptrain::fault::Shutdown;
using pptrain::fault::StopListener;
using pptrain::fault::StopRequest;

namespace {
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinite = std::numeric_limits<double>::infinity();

// The requests that a listener hears, in order.
class Heard {
 public:
  explicit Heard(const Shutdown& shutdown)
      : listener_(shutdown, [this](const StopRequest& request) {
          const std::lock_guard lock(mutex_);
          requests_.push_back(request);
          changed_.notify_all();
        }) {}
  // Returns when `count` requests are there, or after ten seconds.
  std::vector<StopRequest> wait_for(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(10), [&] { return requests_.size() >= count; });
    return requests_;
  }
  std::vector<StopRequest> caught_up() {
    listener_.catch_up();
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<StopRequest> requests_;
  StopListener listener_;
};

// Runs `child` in a child process, and `parent` here when the child calls ready. Returns the child's exit
// code, or 128 + the signal that ended it.
int exit_code_of(const std::function<int(const std::function<void()>& ready)>& child,
                 const std::function<void(pid_t)>& parent) {
  int channel[2];
  REQUIRE(pipe(channel) == 0);
  const pid_t pid = fork();
  if (pid == 0) {
    _exit(child([&] { [[maybe_unused]] const auto written = write(channel[1], "r", 1); }));
  }
  char ready = 0;
  REQUIRE(read(channel[0], &ready, 1) == 1);
  parent(pid);
  int status = 0;
  waitpid(pid, &status, 0);
  close(channel[0]);
  close(channel[1]);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
}  // namespace

TEST_CASE("each signal sets the flag, and only while someone listens") {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP, SIGXCPU}) {
    struct sigaction before {
    }, after{};
    sigaction(signal, nullptr, &before);
    {
      const Shutdown shutdown;
      CHECK_FALSE(shutdown.requested());
      raise(signal);
      CHECK(shutdown.requested());
    }
    sigaction(signal, nullptr, &after);
    CHECK(before.sa_handler == after.sa_handler);
  }
}

TEST_CASE("a hang-up that nohup had ignored stays ignored, and so does a pipe that nobody reads") {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  {
    const Shutdown shutdown;
    raise(SIGHUP);
    raise(SIGPIPE);
    CHECK_FALSE(shutdown.requested());
  }
  CHECK(std::signal(SIGHUP, before) == SIG_IGN);
}

TEST_CASE("a listener hears of a request, of one that came before it too") {
  const Shutdown shutdown;
  Heard before(shutdown);
  const auto begin = std::chrono::steady_clock::now();
  raise(SIGUSR1);
  Heard after(shutdown);
  for (Heard* heard : {&before, &after}) {
    const auto requests = heard->wait_for(1);
    REQUIRE(requests.size() == 1);
    CHECK(requests[0].signal == SIGUSR1);
    CHECK_FALSE(requests[0].from_launcher);
    CHECK(requests[0].time >= begin);
  }
  CHECK(pptrain::fault::signal_name(SIGUSR1) == "SIGUSR1");
}

TEST_CASE("who has caught up has told every request, each once") {
  for (int round = 0; round < 200; ++round) {  // whether the listener's thread or this one is first is chance
    const Shutdown shutdown;
    Heard heard(shutdown);
    REQUIRE(heard.caught_up().empty());
    raise(SIGUSR1);
    REQUIRE(heard.caught_up().size() == 1);
    REQUIRE(heard.caught_up().size() == 1);
  }
}

TEST_CASE("a request of the parent process is told from others, and told after them") {
  const auto child = [](const std::function<void()>& ready) {
    const Shutdown shutdown(/*launched=*/true, SIGCONT);
    Heard heard(shutdown);
    raise(SIGCONT);  // not from the parent, so it is ignored
    raise(SIGUSR1);
    const auto own = heard.wait_for(1);
    if (own.size() != 1 || own[0].from_launcher || own[0].notice || shutdown.launchers_request()) return 1;
    ready();
    const auto requests = heard.wait_for(2);
    if (requests.size() != 2 || !shutdown.launchers_request()) return 2;
    return requests[1].from_launcher && !requests[1].notice && requests[1].signal == SIGTERM ? 42 : 3;
  };
  CHECK(exit_code_of(child, [](pid_t pid) { kill(pid, SIGTERM); }) == 42);
}

TEST_CASE("a launcher's notice is told each time and asks for nothing") {
  const auto child = [](const std::function<void()>& ready) {
    const Shutdown shutdown(/*launched=*/true, SIGCONT);
    Heard heard(shutdown);
    ready();
    for (size_t count = 1; count <= 2; ++count) {
      const auto notices = heard.wait_for(count);
      if (notices.size() != count || !notices.back().notice || !notices.back().from_launcher) return 1;
      ready();
    }
    return shutdown.requested() || shutdown.launchers_request() ? 2 : 42;
  };
  CHECK(exit_code_of(child, [](pid_t pid) {
          kill(pid, SIGCONT);
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
          kill(pid, SIGCONT);
        }) == 42);
}

TEST_CASE("what a launcher passes on is no second SIGINT") {
  const auto child = [](const std::function<void()>& ready) {
    const Shutdown shutdown(/*launched=*/true);
    Heard heard(shutdown);
    raise(SIGINT);
    if (heard.wait_for(1).size() != 1) return 1;
    ready();
    return heard.wait_for(2).size() == 2 ? 42 : 2;
  };
  CHECK(exit_code_of(child, [](pid_t pid) { kill(pid, SIGINT); }) == 42);
}

TEST_CASE("a signal that comes while the process ends does not kill it") {
  const auto child = [](const std::function<void()>& ready) {
    {
      Shutdown shutdown;
      shutdown.keep_until_exit();
    }
    ready();
    raise(SIGTERM);
    return 3;
  };
  CHECK(exit_code_of(child, [](pid_t) {}) == 3);
}

TEST_CASE("a second SIGINT ends the process at once, with its last words") {
  int out[2];
  REQUIRE(pipe(out) == 0);
  const auto child = [&](const std::function<void()>& ready) {
    dup2(out[1], STDOUT_FILENO);
    Shutdown shutdown;
    shutdown.set_last_words("an earlier text that is longer than the one that counts");
    shutdown.set_last_words("over and out");
    raise(SIGINT);
    if (!shutdown.requested()) return 1;
    ready();
    raise(SIGINT);
    return 2;
  };
  CHECK(exit_code_of(child, [](pid_t) {}) == 130);
  char text[64] = {};
  CHECK(read(out[0], text, sizeof text) == 12);
  CHECK(std::string(text) == "over and out");
  close(out[0]);
  close(out[1]);
}

TEST_CASE("what another rank's launcher has sent counts as sent by one's own") {
  const Shutdown shutdown;
  Heard heard(shutdown);
  CHECK_FALSE(shutdown.requested());
  shutdown.take_launchers_request(SIGTERM);
  shutdown.take_launchers_request(SIGINT);  // the first counts
  CHECK(shutdown.requested());
  REQUIRE(shutdown.launchers_request());
  CHECK(shutdown.launchers_request()->signal == SIGTERM);
  const auto requests = heard.wait_for(1);
  REQUIRE(requests.size() == 1);
  CHECK(requests[0].from_launcher);
  CHECK_FALSE(requests[0].notice);
}

TEST_CASE("a step without a valid token is counted and is no anomaly") {
  AnomalyGuard guard(1);
  CHECK_FALSE(guard.accept(not_a_number, 2.0));
  guard.skip_empty();
  guard.skip_empty();
  CHECK(guard.total() == 3);
  CHECK(guard.in_a_row() == 1);
  CHECK_THROWS(guard.accept(not_a_number, 2.0));  // skips in between do not break the row
}

TEST_CASE("steps that are not finite are skipped, and too many in a row end the run") {
  AnomalyGuard guard(2);
  CHECK(guard.accept(1.0, 2.0));
  CHECK_FALSE(guard.accept(not_a_number, 2.0));
  CHECK_FALSE(guard.accept(1.0, infinite));
  CHECK(guard.in_a_row() == 2);
  CHECK(guard.accept(1.0, 2.0));
  CHECK(guard.in_a_row() == 0);
  CHECK(guard.total() == 2);
  guard.restore(2, 9);
  CHECK_FALSE(AnomalyGuard(1).accept(not_a_number, 1.0, "elsewhere"));
  CHECK_THROWS_WITH(AnomalyGuard(0).accept(1.0, not_a_number, "the gradient of head.weight"),
                    pptrain::test::contains_text("grad norm nan; the gradient of head.weight"));
  CHECK_THROWS_WITH(guard.accept(-infinite, 1.0), pptrain::test::contains_text("max_skipped_steps = 2") &&
                                                      pptrain::test::contains_text("3 steps in a row"));
  AnomalyGuard alike(2);
  CHECK(alike.accept(1.0, 2.0));
  CHECK_FALSE(alike.accept(22911, infinite, "head.weight"));
  CHECK_FALSE(alike.accept(22911, infinite, "head.weight"));
  CHECK_THROWS_WITH(alike.accept(22911, infinite, "head.weight"),
                    pptrain::test::contains_text(
                        "\n  loss 1, grad norm 2\n  loss 22911, grad norm inf; head.weight (3 steps)\n"));
}
