// Signals that ask for an orderly end: finish the step, save, exit 3.
#pragma once

#include <csignal>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace pptrain::fault {

// A request that this process end.
struct StopRequest {
  int signal = 0;
  bool from_launcher = false;  // which may not wait for ever
  bool notice = false;         // only a sign that the launcher may be about to ask
  std::chrono::steady_clock::time_point time;
};

// "SIGTERM".
std::string signal_name(int signal);

// While it lives, SIGTERM, SIGINT, SIGUSR1, SIGHUP (the terminal is gone) and SIGXCPU (a limit on processor
// time, before the kernel kills) only set a flag; a second SIGINT ends the process at once (exit code 130). A
// SIGHUP that was ignored stays so: that is what nohup does. SIGPIPE is ignored: a run goes on if its
// standard output is read no more. The earlier handlers come back on destruction. One at a time in a process.
class Shutdown {
 public:
  // `launched`: the parent process is a launcher. Its SIGINT is no second one: what it passes on may have
  // come from the terminal too. `notice`: what it sends before it asks, though it may send it for another
  // reason; from others it means nothing.
  explicit Shutdown(bool launched = false, std::optional<int> notice = std::nullopt);
  ~Shutdown();
  Shutdown(const Shutdown&) = delete;
  Shutdown& operator=(const Shutdown&) = delete;

  bool requested() const;
  std::optional<StopRequest> launchers_request() const;  // the first; no notice

  // As if this process' launcher had sent the signal now, since another rank's launcher has. From any thread.
  void take_launchers_request(int signal) const;

  // The process ends next: the handlers stay after destruction, so that a signal which comes while it ends
  // does not kill it and change its exit code.
  void keep_until_exit();

  // What is written to standard output before a second SIGINT ends the process, at most 255 bytes. Of one
  // thread at a time.
  void set_last_words(std::string_view text) const;

 private:
  void take(int signal, const struct sigaction& action);

  std::array<int, 8> signals_{};
  std::array<struct sigaction, 8> previous_{};
  size_t count_ = 0;
};

// Calls `heard` in a thread of its own: with the first request, at once if it came before; once more with the
// launcher's first if that was another; and with each notice. Destroying it waits for `heard` to return.
// `shutdown` must outlive it. Throws Error if there are too many.
class StopListener {
 public:
  StopListener(const Shutdown& shutdown, std::function<void(const StopRequest&)> heard);
  ~StopListener();
  StopListener(const StopListener&) = delete;
  StopListener& operator=(const StopListener&) = delete;

  // `heard` has returned from every request that came before this call; it may be called in this thread.
  void catch_up();

 private:
  void run();

  const Shutdown& shutdown_;
  std::function<void(const StopRequest&)> heard_;
  std::mutex mutex_;  // one thread at a time compares and tells
  bool told_any_ = false, told_launchers_ = false;
  std::chrono::steady_clock::time_point last_told_{};  // of a notice
  size_t place_;                                       // the handler wakes it by this place
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

}  // namespace pptrain::fault
