// Requests to a running run (pptrain save, pptrain stop): files in FOLDER/requests, the run's side of them,
// and the asking side.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "app/run/run_lock.h"

namespace pptrain::app {

enum class RequestKind { save, stop };

std::string word_of(RequestKind kind);  // "save"

// One request: requests/save.ID.
struct Request {
  RequestKind kind = RequestKind::save;
  std::string id;   // 32 hexadecimal digits
  LockHolder run;   // the run that must act on it; no other ever does
  int64_t pid = 0;  // of the asking process
  std::string host;

  std::string file_name() const;
  std::string describe() const;  // "save, asked for by process 17 on node3"
};

// The result of a request: requests/answer.ID.
struct Answer {
  bool done = false;
  // For the asking side, not in the file: requested | saved | stopped | finished | refused | failed |
  // unanswered
  std::string state = {};
  int64_t step = 0;             // the run acted after it; 0: it did not act
  std::string checkpoint = {};  // name of the folder in FOLDER/checkpoints; empty: nothing was saved
  std::string message = {};     // why not
};

// Has a new id, and this process as the asking one.
Request make_request(RequestKind kind, const LockHolder& run);

// --- Files: the asking side
// Puts the request into the folder, and makes the folder if needed. Throws Error if it cannot be made, or is
// a link.
void post(const std::filesystem::path& run_dir, const Request& request);
// Takes the request back. False: it is gone, so it was answered.
bool withdraw(const std::filesystem::path& run_dir, const Request& request);
// Nothing while there is no answer. Removes an answer that was read. Throws Error if it cannot be read.
std::optional<Answer> take_answer(const std::filesystem::path& run_dir, const std::string& id);

// --- Files: the run
// "save.ID", "stop.ID": may a file of this name be a request? The run ignores other files.
bool is_request_name(const std::string& name);
// Throws Error that says what is wrong with the file: not regular (e.g. a link), too long, no such object.
Request read_request(const std::filesystem::path& file);
// Removes the request and writes the answer, unless the request was withdrawn. Throws Error.
void answer(const std::filesystem::path& run_dir, const Request& request, const Answer& answer);

// The requests that a run acts on. Each is seen, agreed on (all ranks act on it after a step) and answered
// when the action is done or has failed. Each is taken once, even if its file cannot be removed or comes
// again. Nothing here throws or ends a run.
class LiveRequests {
 public:
  // `self`: the run, as in its lock. Makes the folder: as its owner the run can remove others' files in it.
  // Discards requests for earlier runs, and answers that nobody has fetched for an hour.
  LiveRequests(std::filesystem::path run_dir, LockHolder self);
  // Withdraws the remaining requests: the run has ended, and the asking side reads its end.
  ~LiveRequests();
  LiveRequests(const LiveRequests&) = delete;
  LiveRequests& operator=(const LiveRequests&) = delete;

  // Looks into the folder, unless the last time was within half a second.
  void look();
  // Are there requests of this kind that were seen and not yet agreed on?
  bool wants(RequestKind kind) const;
  bool wants_any() const { return !seen_.empty(); }
  // All ranks act on the requests seen so far after this step, with a save.
  void agreed(int64_t step);
  // A save has ended; failure: "" if it has not failed. From any thread.
  void saved(int64_t step, const std::string& checkpoint, const std::string& failure);
  // Looks once more, and answers all with a save that has ended. Was one of them a stop?
  bool answer_all(int64_t step, const std::string& checkpoint, const std::string& failure);

 private:
  void search();
  void take(const std::filesystem::path& file);

  std::filesystem::path run_dir_;
  LockHolder self_;
  std::chrono::steady_clock::time_point looked_{};
  std::set<std::string> known_;  // names of all files that were looked at: taken, discarded or ignored
  bool warned_ = false;          // about a file that is ignored
  std::vector<Request> seen_;
  std::mutex mutex_;                        // of agreed_
  std::multimap<int64_t, Request> agreed_;  // by step
};

struct AskOptions {
  std::chrono::duration<double> patience{600};
  bool waits = true;  // false: only posts the request
  // Called a few times a second. True: the user stops waiting. May be empty.
  std::function<bool()> interrupted = {};
  std::function<void(const std::string&)> progress = {};  // lines for the user; may be empty
};

// Asks the run that has the folder, and waits until the action is done. If no run has it, nothing is written
// and the answer is "refused". A stop is done when the run has given the folder up. If the run ends by itself
// meanwhile, its end and its last save count as the answer. Throws UsageError if the folder is not a run's,
// and Error if the request cannot be written.
Answer ask(const std::filesystem::path& run_dir, RequestKind kind, const AskOptions& options);

}  // namespace pptrain::app
