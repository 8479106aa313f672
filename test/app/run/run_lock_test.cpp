// One run at a time in a folder, by the system's locks.
#include "app/run/run_lock.h"

#include <c10/util/ScopeExit.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/process.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using namespace pptrain;
using pptrain::app::RunLock;
using pptrain::test::contains_text;
using pptrain::test::content;
using pptrain::test::TemporaryFolder;
using pptrain::test::write_file;

namespace {

void unexpected(const std::string& text) {
  FAIL_CHECK(text);
}

// Another process that holds the folder's lock until it is killed.
class OtherRun {
 public:
  explicit OtherRun(const std::filesystem::path& folder) {
    std::array<int, 2> ready{};
    REQUIRE(pipe(ready.data()) == 0);
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      RunLock lock;
      const char taken = lock.try_take(folder, [](const std::string&) {}) ? 'y' : 'n';
      if (write(ready[1], &taken, 1) == 1) pause();
      _exit(0);
    }
    char taken = 0;
    REQUIRE(read(ready[0], &taken, 1) == 1);
    REQUIRE(taken == 'y');
    close(ready[0]);
    close(ready[1]);
  }
  ~OtherRun() { end(); }
  OtherRun(const OtherRun&) = delete;
  OtherRun& operator=(const OtherRun&) = delete;

  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

}  // namespace

TEST_CASE("a folder that another process has is refused with its pid and host, and free when it is killed") {
  const TemporaryFolder folder;
  OtherRun other(folder.path());
  RunLock lock;
  CHECK_FALSE(lock.try_take(folder.path(), unexpected));
  REQUIRE(lock.holder());
  CHECK(lock.holder()->pid == other.pid());
  CHECK(lock.holder()->host == host_name());
  const std::string message = app::taken_message(folder.path(), lock.holder());
  CHECK_THAT(message, contains_text(fmt::format("process {} on {}", other.pid(), host_name())));
  CHECK_THAT(message, contains_text(pptrain::command_line()));
  other.end();
  CHECK(lock.try_take(folder.path(), unexpected));
}

TEST_CASE("a run that started keeps out a second one of its own process, until it ends") {
  const TemporaryFolder folder;
  {
    RunLock first, second;
    CHECK(first.try_take(folder.path(), unexpected));
    CHECK_FALSE(second.try_take(folder.path(), unexpected));
    CHECK(second.holder()->pid == getpid());
    { const std::ifstream looked(folder.path() / "lock"); }  // closing it must not drop the lock
    CHECK_FALSE(second.try_take(folder.path(), unexpected));
  }
  CHECK(content(folder.path() / "lock").empty());
  RunLock next;
  CHECK(next.try_take(folder.path(), unexpected));
}

TEST_CASE("a file system that cannot lock is said, and does not stop a run") {
  const TemporaryFolder folder;
  for (const int reason : {ENOLCK, EOPNOTSUPP, ENOSYS}) {
    std::string said;
    RunLock lock;
    CHECK(lock.try_take(
        folder.path(), [&](const std::string& text) { said = text; }, [&](int) { return reason; }));
    CHECK_THAT(said, contains_text("cannot lock") && contains_text("nothing keeps a second run out"));
  }
}

TEST_CASE("the lock of a host that may have crashed is waited for as long as an NFS server keeps it") {
  using std::chrono::seconds;
  const app::LockHolder here{.pid = 1, .host = host_name(), .since = {}, .command = {}};
  const app::LockHolder there{.pid = 1, .host = "another host", .since = {}, .command = {}};
  CHECK(app::patience(here) < seconds(5));
  CHECK(app::patience(std::nullopt) < seconds(5));
  CHECK(app::patience(there) > seconds(90));
  CHECK_THAT(app::taken_message("runs/x", there), contains_text("kill -TERM 1 on another host"));
}

TEST_CASE("a run of hosts replaces the lock of its host that died, and no other") {
  const TemporaryFolder folder;
  const auto set_run = [](const char* run) { setenv("PPTRAIN_ELASTIC_RUN", run, 1); };
  const auto unset = c10::make_scope_exit([] { unsetenv("PPTRAIN_ELASTIC_RUN"); });
  set_run("a");
  RunLock dead;  // another host's, whose lock the file server keeps
  REQUIRE(dead.try_take(folder.path(), unexpected));
  const auto hold = [&](const std::string& host, const std::string& run) {
    write_file(
        folder.path() / "lock",
        nlohmann::json{{"pid", 1}, {"host", host}, {"since", ""}, {"command", ""}, {"elastic", run}}.dump());
  };
  RunLock next;
  hold("another host", "b");
  CHECK_FALSE(next.try_take(folder.path(), unexpected));
  hold(host_name(), "a");
  CHECK_FALSE(next.try_take(folder.path(), unexpected));
  hold("another host", "");
  set_run("");
  CHECK_FALSE(next.try_take(folder.path(), unexpected));
  CHECK(dead.is_in(folder.path()));
  set_run("a");
  hold("another host", "a");
  CHECK(next.try_take(folder.path(), unexpected));
  hold(host_name(), "a");  // as of another process than this test's
  CHECK_FALSE(dead.is_in(folder.path()));
  CHECK(next.is_in(folder.path()));
  RunLock third;
  CHECK_FALSE(third.try_take(folder.path(), unexpected));
}

TEST_CASE("a second start in a run's folder touches nothing in it") {
  const TemporaryFolder folder;
  const auto run_dir = folder.path() / "run";
  const std::string text = test::small_job_text();
  const test::Overrides job = {"train.steps=2", "eval.interval=0", "distributed.pp=2",
                               "train.grad_accum_steps=2", "checkpoint.resume=restart"};
  test::run_small_job(text, run_dir, job);
  const std::string metrics = content(run_dir / "metrics.jsonl");
  const OtherRun other(run_dir);
  CHECK_THROWS_WITH(test::start_plan(test::small_plan(text, run_dir, job)),
                    contains_text(fmt::format("in use by process {}", other.pid())));
  CHECK(content(run_dir / "metrics.jsonl") == metrics);
  CHECK(std::filesystem::exists(run_dir / "checkpoints/step_2"));
  CHECK_FALSE(std::filesystem::exists(run_dir / "checkpoints.1"));
}
