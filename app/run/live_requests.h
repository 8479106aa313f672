// What people ask of the run while it goes on: files in run.dir/requests (app/run/request_file.h), which
// rank 0 looks for.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "app/run/request_file.h"

namespace pptrain::app {

// A request goes three ways: seen, agreed on (all ranks act on it after a step), answered when what it asks
// for is done or has failed. Each is taken once, whatever becomes of its file: that may stay, where it cannot
// be removed, or come again. Nothing here throws or ends a run.
class LiveRequests {
 public:
  // `self`: the run, as its lock has it. Makes the folder; requests for earlier runs that lie there are
  // discarded.
  LiveRequests(std::filesystem::path run_dir, LockHolder self);
  // Takes away what is left: the run has ended, and its end is what those who wait look at then.
  ~LiveRequests();
  LiveRequests(const LiveRequests&) = delete;
  LiveRequests& operator=(const LiveRequests&) = delete;

  // Looks into the folder, if the last time is half a second ago.
  void look();
  // Requests of this kind that are seen and not agreed on.
  bool wants(RequestKind kind) const;
  bool wants_any() const { return wants(RequestKind::save) || wants(RequestKind::stop); }
  // All ranks act on what is seen after this step, with a save.
  void agreed(int64_t step);
  // A save has ended; failure: "" where it has not failed. From any thread.
  void saved(int64_t step, const std::string& checkpoint, const std::string& failure);

 private:
  using Clock = std::chrono::steady_clock;
  struct Agreed {
    Request request;
    int64_t step = 0;
  };

  void search();
  void take(const std::filesystem::path& file);
  void ignore(const std::string& reason);
  void reply(const Request& request, const Answer& answer) const;

  std::filesystem::path run_dir_;
  LockHolder self_;
  Clock::time_point looked_{};
  std::set<std::string> known_;  // names of all that were looked at: taken, discarded or ignored
  bool told_of_ignored_ = false;
  std::vector<Request> seen_;
  mutable std::mutex mutex_;  // of agreed_
  std::vector<Agreed> agreed_;
};

}  // namespace pptrain::app
