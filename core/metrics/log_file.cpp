#include "core/metrics/log_file.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/spdlog.h>

#include <cerrno>
#include <utility>

#include "core/base/printable.h"
#include "core/io/files.h"

namespace pptrain::metrics {

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

std::shared_ptr<LogFile> file_of_log() {
  for (const spdlog::sink_ptr& sink : spdlog::default_logger()->sinks()) {
    if (auto file = std::dynamic_pointer_cast<LogFile>(sink)) return file;
  }
  return nullptr;
}

}  // namespace pptrain::metrics
