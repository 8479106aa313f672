// Requests to a run: the files, the run's side, and the asking side.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "app/run/requests.h"
#include "app/run/run_status.h"
#include "core/base/error.h"
#include "test/app/small_job.h"
#include "test/support/captured_log.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::app;
using namespace pptrain::test;

namespace {

const LockHolder this_run{
    .pid = 17, .host = "node3", .since = "2026-01-31 23:59:59 UTC", .command = "pptrain"};

// A run that holds the folder's lock. It acts on requests until it has to stop, and saves a step per turn.
class SmallRun {
 public:
  explicit SmallRun(fs::path folder, std::string save_failure = "")
      : folder_(std::move(folder)), save_failure_(std::move(save_failure)) {
    REQUIRE(lock_.try_take(folder_, [](const std::string& text) { FAIL(text); }));
    thread_ = std::thread([this] { run(); });
  }
  ~SmallRun() {
    ending_ = true;
    thread_.join();
  }
  SmallRun(const SmallRun&) = delete;
  SmallRun& operator=(const SmallRun&) = delete;

  std::atomic<bool> deaf = false;

 private:
  void run() {
    {
      LiveRequests requests(folder_, *lock_.own());
      bool stop = false;
      for (int64_t step = 1; !stop && !ending_; ++step) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        if (deaf) continue;
        requests.look();
        stop = requests.wants(RequestKind::stop);
        if (!requests.wants_any()) continue;
        requests.agreed(step);
        requests.saved(step - 1, "step_0", "");  // an earlier one is no answer
        requests.saved(step, save_failure_.empty() ? "step_" + std::to_string(step) : "", save_failure_);
      }
    }
    write_run_end(folder_,
                  {.how = RunPhase::stopped, .step = 99, .checkpoint = "step_99", .process = *lock_.own()});
    lock_ = RunLock();
  }

  fs::path folder_;
  std::string save_failure_;
  RunLock lock_;
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

AskOptions patient_for(double seconds) {
  return {.patience = std::chrono::duration<double>(seconds)};
}

}  // namespace

TEST_CASE("what was asked during a save is answered with it") {
  const TemporaryFolder folder;
  RunLock lock;
  REQUIRE(lock.try_take(folder.path(), [](const std::string& text) { FAIL(text); }));
  LiveRequests requests(folder.path(), *lock.own());
  const Request request = make_request(RequestKind::stop, *lock.own());
  post(folder.path(), request);
  CHECK(requests.answer_all(14, "diverged_step_14", ""));
  const auto answer = take_answer(folder.path(), request.id);
  REQUIRE(answer);
  CHECK(answer->done);
  CHECK(answer->step == 14);
  CHECK(answer->checkpoint == "diverged_step_14");
  CHECK_FALSE(requests.answer_all(15, "step_15", ""));
}

TEST_CASE("a request and its answer read back, and leave nothing") {
  const TemporaryFolder folder;
  const Request request = make_request(RequestKind::stop, this_run);
  post(folder.path(), request);
  CHECK(names_in(folder.path() / "requests") == std::set<std::string>{"stop." + request.id});
  const Request read = read_request(folder.path() / "requests" / request.file_name());
  CHECK(read.kind == RequestKind::stop);
  CHECK(read.id == request.id);
  CHECK(read.run.same_process(this_run));
  CHECK(read.pid == getpid());
  CHECK_FALSE(take_answer(folder.path(), request.id));
  answer(folder.path(), request, {.done = true, .step = 12, .checkpoint = "step_12", .message = "m"});
  const auto answered = take_answer(folder.path(), request.id);
  REQUIRE(answered);
  CHECK(answered->done);
  CHECK(answered->step == 12);
  CHECK(answered->checkpoint == "step_12");
  CHECK(names_in(folder.path() / "requests").empty());
  CHECK_FALSE(withdraw(folder.path(), request));
  answer(folder.path(), request, {.done = true});  // no command waits for it any more
  CHECK(names_in(folder.path() / "requests").empty());
}

TEST_CASE("what is no request is refused with its name") {
  const TemporaryFolder folder;
  const fs::path requests = folder.path() / "requests";
  post(folder.path(), make_request(RequestKind::save, this_run));
  const fs::path good = *fs::directory_iterator(requests);
  const std::string text = content(good);
  const fs::path file = requests / ("save." + std::string(32, 'a'));
  for (const std::string& bad :
       {std::string(), std::string("{"), std::string("[]"), std::string("{\"run\":{}}"), text + text,
        std::string(1 << 20, ' '),
        std::string("{\"run\":{\"pid\":1.5,\"host\":\"h\",\"since\":\"s\"},\"pid\":1,"
                    "\"host\":\"h\"}"),
        std::string(
            "{\"run\":{\"pid\":1,\"host\":\"\\u001b[2J\",\"since\":\"s\"},\"pid\":1,\"host\":\"h\"}")}) {
    CAPTURE(bad.substr(0, 100));
    write_file(file, bad);
    CHECK_THROWS_WITH(read_request(file), contains_text(file.filename()));
  }
  fs::remove(file);
  fs::create_symlink(good, file);
  CHECK_THROWS_WITH(read_request(file), contains_text("no regular file"));
  fs::remove(file);
  REQUIRE(mkfifo(file.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(read_request(file), contains_text("no regular file"));
  for (const char* name :
       {"save", "save.", "save.xyz", "kill.00000000000000000000000000000000", "save.../../lock"})
    CHECK_FALSE(is_request_name(name));
  fs::remove_all(requests);
  fs::create_directory(folder.path() / "elsewhere");
  fs::create_directory_symlink(folder.path() / "elsewhere", requests);
  CHECK_THROWS_WITH(post(folder.path(), make_request(RequestKind::save, this_run)),
                    contains_text("requests"));
  CHECK(names_in(folder.path() / "elsewhere").empty());
}

TEST_CASE("requests for an earlier run are discarded, what is malformed is ignored with one line") {
  const TemporaryFolder folder;
  LockHolder earlier = this_run;
  earlier.since = "2026-01-30 00:00:00 UTC";
  post(folder.path(), make_request(RequestKind::stop, earlier));
  const fs::path requests = folder.path() / "requests";
  for (const char digit : {'a', 'b', 'c'})
    write_file(requests / ("save." + std::string(32, digit)), "nonsense");
  write_file(requests / "README", "not mine");
  const fs::path old_answer = requests / ("answer." + std::string(32, '0'));
  write_file(old_answer, "{}");
  fs::last_write_time(old_answer, fs::file_time_type::clock::now() - std::chrono::hours(2));
  const CapturedLog log;
  {
    LiveRequests run(folder.path(), this_run);
    CHECK_FALSE(run.wants_any());
    post(folder.path(), make_request(RequestKind::stop, earlier));  // it comes late
    const Request mine = make_request(RequestKind::save, this_run);
    post(folder.path(), mine);
    run.look();
    CHECK(run.wants(RequestKind::save));
    CHECK_FALSE(run.wants(RequestKind::stop));
    run.agreed(5);
    CHECK_FALSE(run.wants_any());
  }
  const std::string text = log.text();
  CHECK_THAT(text, contains_text("discarded a request for an earlier run: stop"));
  CHECK(text.find("is ignored") == text.rfind("is ignored"));
  CHECK(text.find("is ignored") != std::string::npos);
  // The run ended before the save did: its end is the answer.
  const auto left = names_in(requests);
  REQUIRE(left.size() == 4);
  CHECK(*left.begin() == "README");
  CHECK(*left.rbegin() == "save." + std::string(32, 'c'));
}

TEST_CASE("a request acts once, whatever becomes of its file and its answer") {
  const TemporaryFolder folder;
  const fs::path requests = folder.path() / "requests";
  const auto next_look = [] { std::this_thread::sleep_for(std::chrono::milliseconds(600)); };
  LockHolder earlier = this_run;
  earlier.since = "2026-01-30 00:00:00 UTC";
  const CapturedLog log;
  LiveRequests run(folder.path(), this_run);
  CHECK(fs::is_directory(requests));  // the run's own, in which it can remove what others put there
  const Request save = make_request(RequestKind::save, this_run);
  const Request late = make_request(RequestKind::stop, earlier);
  post(folder.path(), save);
  post(folder.path(), late);
  fs::create_directories(requests / ("answer." + save.id) / "in the way");
  run.look();
  CHECK(run.wants(RequestKind::save));
  run.agreed(5);
  run.saved(5, "step_5", "");
  CHECK_FALSE(fs::exists(requests / save.file_name()));  // although the answer could not be written
  // As if the requests could not be removed.
  post(folder.path(), save);
  post(folder.path(), late);
  for (int look = 0; look < 2; ++look) {
    next_look();
    run.look();
    CHECK_FALSE(run.wants_any());
  }
  const Request another = make_request(RequestKind::stop, this_run);
  post(folder.path(), another);
  next_look();
  run.look();
  CHECK(run.wants(RequestKind::stop));
  CHECK_FALSE(run.wants(RequestKind::save));
  const std::string text = log.text();
  for (const char* once : {"request: save", "discarded a request", "is not answered"}) {
    CAPTURE(once);
    CHECK(text.find(once) != std::string::npos);
    CHECK(text.find(once) == text.rfind(once));
  }
}

TEST_CASE("a run is asked to save and to stop, by several at once") {
  const TemporaryFolder folder;
  const SmallRun run(folder.path());
  CHECK(read_status(folder.path()).phase == RunPhase::starting);
  std::vector<Answer> outcomes(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    threads.emplace_back([&, i] {
      outcomes[i] = ask(folder.path(), i < 2 ? RequestKind::save : RequestKind::stop, patient_for(300));
    });
    if (i == 1) {
      for (std::thread& thread : threads) thread.join();
      threads.clear();
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < outcomes.size(); ++i) {
    CAPTURE(i, outcomes[i].message);
    CHECK(outcomes[i].done);
    CHECK(outcomes[i].state == (i < 2 ? "saved" : "stopped"));
    CHECK(outcomes[i].step > 0);  // 99 if the run was already ending
    CHECK(outcomes[i].checkpoint == "step_" + std::to_string(outcomes[i].step));
  }
  CHECK(look_at_lock(folder.path()).held == false);
  CHECK(read_status(folder.path()).phase == RunPhase::stopped);
  const Answer refused = ask(folder.path(), RequestKind::save, patient_for(300));
  CHECK(refused.state == "refused");
  CHECK_THAT(refused.message, contains_text("no run is under way") && contains_text("stopped"));
  CHECK(names_in(folder.path() / "requests").empty());
}

TEST_CASE("a save that fails is told to who asked") {
  const TemporaryFolder folder;
  const SmallRun run(folder.path(), "the disk is full");
  const Answer outcome = ask(folder.path(), RequestKind::save, patient_for(300));
  CHECK(outcome.state == "failed");
  CHECK(outcome.message == "the disk is full");
}

TEST_CASE("who waits no longer takes the request back; who waits while the run ends hears how it ended") {
  const TemporaryFolder folder;
  std::optional<SmallRun> run;
  run.emplace(folder.path());
  run->deaf = true;
  const Answer impatient = ask(folder.path(), RequestKind::stop, patient_for(0.01));
  CHECK(impatient.state == "unanswered");
  CHECK(names_in(folder.path() / "requests").empty());
  std::atomic<bool> waits = false;
  Answer outcome;
  AskOptions options = patient_for(300);
  options.interrupted = [&] {
    waits = true;
    return false;
  };
  std::thread asks([&] { outcome = ask(folder.path(), RequestKind::save, options); });
  while (!waits) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  run.reset();
  asks.join();
  CHECK(outcome.done);
  CHECK(outcome.state == "stopped");
  CHECK(outcome.checkpoint == "step_99");
  CHECK_THAT(outcome.message, contains_text("ended by itself"));
  CHECK(names_in(folder.path() / "requests").empty());
}

TEST_CASE("a folder that no run has used is named; so is what a killed run leaves") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(read_status(folder.path()), UsageError);
  CHECK_THROWS_AS(read_status(folder.path() / "nowhere"), UsageError);
  write_file(folder.path() / "lock",
             "{\"pid\":5,\"host\":\"node3\",\"since\":\"2026-01-31 23:59:59 UTC\",\"command\":\"c\"}");
  const RunStatus dead = read_status(folder.path());
  CHECK(dead.phase == RunPhase::dead);
  CHECK(status_exit_code(dead.phase) == 4);
  CHECK_THAT(status_text(folder.path(), dead),
             contains_text("dead") && contains_text("was process 5 on node3"));
  // Half of everything.
  write_file(folder.path() / "metrics.jsonl",
             "{\"step\":3,\"loss\":1.5,\"step_time_s\":2,\"tokens\":10}\n{\"step\":4,\"lo");
  write_file(folder.path() / "job.toml", "[train\n");
  write_file(folder.path() / "end.json", "{\"how\":\"fin");
  fs::create_directories(folder.path() / "checkpoints/step_3");
  write_file(folder.path() / "checkpoints/best", "step_9/../..\n");
  const RunStatus status = read_status(folder.path());
  CHECK(status.phase == RunPhase::dead);
  REQUIRE(status.step);
  CHECK(status.step->step == 3);
  CHECK_FALSE(status.steps);
  CHECK(status.checkpoint.empty());  // without a manifest it does not count
  CHECK(status.best.empty());
  CHECK(nlohmann::json::parse(status_json(folder.path(), status)).at("step_time_s") == 2);
  write_run_end(folder.path(), {.how = RunPhase::failed, .step = 3, .message = "no memory \x1b[2J left"});
  const RunStatus failed = read_status(folder.path());
  CHECK(failed.phase == RunPhase::failed);
  CHECK_THAT(status_text(folder.path(), failed), contains_text("no memory ?[2J left"));
}
