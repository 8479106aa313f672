// Standard output as people see it: lines with the time and, on a terminal, one line that stays at the
// bottom.
#pragma once

#include <spdlog/sinks/ansicolor_sink.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace pptrain::metrics {

enum class Color { automatic, always, never };

// automatic: where standard output is a terminal that knows colors and NO_COLOR (no-color.org) is not set.
bool wants_color(Color color);

// Columns of the terminal that standard output is, asked anew each time, so that a window may change its
// size. Nothing where there is none: a file, a pipe, the terminal without a size that Open MPI gives its
// ranks, or one that cannot go back in a line (TERM=dumb).
std::optional<int> terminal_columns();

// A sink of spdlog. A line that is logged erases the status line, and the status line is drawn anew below it.
class Console final : public spdlog::sinks::ansicolor_stdout_sink_mt {
 public:
  // The status line for so many columns; what it shows must be shorter than that.
  using Status = std::function<std::string(int columns, bool color)>;

  explicit Console(bool color);
  ~Console() override;

  void log(const spdlog::details::log_msg& message) override;
  // Draws the line now and after each line of the log. Does nothing where standard output is no terminal.
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

// The default logger's console, if it has one.
std::shared_ptr<Console> console_of_log();

}  // namespace pptrain::metrics
