// The log on disk: every line that spdlog prints, with date and time.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

namespace pptrain::metrics {

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

  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  const std::string name_;
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::string kept_;
};

// The default logger's file, if it has one.
std::shared_ptr<LogFile> file_of_log();

}  // namespace pptrain::metrics
