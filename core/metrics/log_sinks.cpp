#include "core/metrics/log_sinks.h"

#include <spdlog/details/os.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/pattern_formatter.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "core/base/text.h"
#include "core/io/files.h"

namespace pptrain::metrics {

bool wants_color(Color color) {
  if (color != Color::automatic) return color == Color::always;
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  return terminal_columns() && spdlog::details::os::is_color_terminal();
}

std::optional<int> terminal_columns() {
  const char* kind = std::getenv("TERM");
  if (kind != nullptr && std::string_view(kind) == "dumb") return std::nullopt;
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

namespace {

// Columns of text with color sequences, "\x1b[...m", which take none.
int shown_columns(std::string_view text) {
  int columns = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      i = std::min(text.find('m', i), text.size());
    } else {
      ++columns;
    }
  }
  return columns;
}

}  // namespace

Console::Console(bool color)
    : ansicolor_stdout_sink(color ? spdlog::color_mode::always : spdlog::color_mode::never), color_(color) {
  set_color(spdlog::level::info, "");
  set_pattern(color ? "\x1b[2m%T\x1b[m %^%v%$" : "%T %v");
}

Console::~Console() {
  clear();
}

void Console::log(const spdlog::details::log_msg& message) {
  const std::lock_guard lock(status_mutex_);
  std::fputs(erase().c_str(), stdout);
  const std::string text = printable({message.payload.data(), message.payload.size()});
  spdlog::details::log_msg shown = message;
  shown.payload = text;
  ansicolor_sink::log(shown);
  draw();
}

void Console::show(Status status) {
  const std::lock_guard lock(status_mutex_);
  status_ = std::move(status);
  draw();
}

void Console::clear() {
  const std::lock_guard lock(status_mutex_);
  std::fputs(erase().c_str(), stdout);
  std::fflush(stdout);
  status_ = nullptr;
}

// A window that has become narrower has broken the line into several rows.
std::string Console::erase() {
  const int columns = terminal_columns().value_or(drawn_ + 1);
  const int rows_above = drawn_ > 0 ? (drawn_ - 1) / columns : 0;
  if (std::exchange(drawn_, 0) == 0) return "";
  return rows_above > 0 ? fmt::format("\x1b[{}A\r\x1b[J", rows_above) : "\r\x1b[K";
}

// One write, and a line of the same width is written over, so that it does not flicker.
void Console::draw() {
  const std::optional<int> columns = status_ ? terminal_columns() : std::nullopt;
  if (!columns) return;
  const std::string before = drawn_ < *columns ? "\r" : erase();
  const std::string text = status_(*columns, color_);
  const std::string line = before + text + "\x1b[K";
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
  drawn_ = shown_columns(text);
}

LogFile::LogFile(std::string name)
    : base_sink(std::make_unique<spdlog::pattern_formatter>("%Y-%m-%dT%H:%M:%S%z %L %v")),
      name_(std::move(name)) {}

void LogFile::open(const std::filesystem::path& folder) {
  const std::lock_guard lock(mutex_);
  if (!path_.empty()) return;
  path_ = folder / name_;
  if (const std::string kept = std::exchange(kept_, {}); !kept.empty()) write(kept);
}

void LogFile::sink_it_(const spdlog::details::log_msg& message) {
  constexpr size_t most_kept = size_t{1} << 20;
  spdlog::memory_buf_t line;
  const std::string shown =
      printable({message.payload.data(), message.payload.size()});  // it is read on terminals
  spdlog::details::log_msg harmless = message;
  harmless.payload = shown;
  formatter_->format(harmless, line);
  const std::string text(line.data(), line.size());
  if (!path_.empty()) return write(text);
  if (kept_.size() < most_kept) kept_ += text;
}

void LogFile::write(const std::string& text) {
  if (!file_) file_.reset(::fdopen(io::open_own_file(path_, O_WRONLY | O_CREAT | O_APPEND).release(), "a"));
  const bool ok = file_ && std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() &&
                  std::fflush(file_.get()) == 0;
  if (!ok) spdlog::throw_spdlog_ex("cannot write " + path_.string(), errno);
}

}  // namespace pptrain::metrics
