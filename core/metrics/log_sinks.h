// Sinks of spdlog: standard output as people see it (lines with the time and, on a terminal, one line that
// stays at the bottom), and the log on disk.
#pragma once

#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace pptrain::metrics {

enum class Color { automatic, always, never };

// automatic: if standard output is a terminal that knows colors and NO_COLOR (no-color.org) is not set.
bool wants_color(Color color);

// Columns of the terminal that standard output is, asked anew each time, so that a window may change its
// size. Nothing if there is none: a file, a pipe, the terminal without a size that Open MPI gives its ranks,
// or one that cannot go back in a line (TERM=dumb).
std::optional<int> terminal_columns();

// A sink of spdlog. A line that is logged erases the status line, and the status line is drawn anew below it.
class Console final : public spdlog::sinks::ansicolor_stdout_sink_mt {
 public:
  // The status line for so many columns; what it shows must be shorter than that.
  using Status = std::function<std::string(int columns, bool color)>;

  explicit Console(bool color);
  ~Console() override;

  void log(const spdlog::details::log_msg& message) override;
  // Draws the line now and after each line of the log. Does nothing if standard output is no terminal.
  void show(Status status);
  void clear();

 private:
  std::string erase();  // the sequence that does so
  void draw();

  const bool color_;
  std::mutex status_mutex_;
  Status status_;
  int drawn_ = 0;  // columns that the line on the screen takes
};

// A sink of spdlog that keeps its lines until it is given a file, since a run prints before it knows
// that its folder is its own. "2026-11-22T01:43:18+00:00 I resumed from ...": I, W or E before the text.
class LogFile final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LogFile(std::string name);

  // Appends to the file of that name in `folder` from now on, what was kept first; nothing that is there is
  // overwritten. The file is made with the first line. A line is handed to the system at once, whole. Does
  // nothing the second time.
  void open(const std::filesystem::path& folder);

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

 private:
  // Throws spdlog_ex that names the file, which spdlog reports on standard error; the run goes on.
  void write(const std::string& text);

  const std::string name_;
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, &std::fclose};
  std::string kept_;
};

// The default logger's Console, or its LogFile, if it has one.
template <class Sink>
std::shared_ptr<Sink> sink_of_log() {
  for (const spdlog::sink_ptr& sink : spdlog::default_logger()->sinks()) {
    if (auto found = std::dynamic_pointer_cast<Sink>(sink)) return found;
  }
  return nullptr;
}

}  // namespace pptrain::metrics
