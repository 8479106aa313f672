#include "core/base/log.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>

#include "core/base/error.h"
#include "core/base/file_descriptor.h"
#include "core/base/text.h"

namespace pptrain {

namespace {

constexpr std::array<std::string_view, 5> subsystem_names = {"schedule", "comm", "data", "checkpoint",
                                                             "memory"};
constexpr std::array<std::string_view, 7> level_names = {
    "trace", "debug", "info", "warning", "error", "critical", "off"};  // as spdlog counts them

std::atomic<int> rank_of_process = -1;
thread_local int rank_of_thread = -1;

// Each line in one write, so that lines of several processes do not mix.
class RankSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit RankSink(std::filesystem::path folder)
      : base_sink(std::make_unique<spdlog::pattern_formatter>("%T.%e")), folder_(std::move(folder)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t time;
    formatter_->format(message, time);
    while (time.size() > 0 && time[time.size() - 1] == '\n') time.resize(time.size() - 1);
    const int rank = log_rank();
    const std::string line =
        fmt::format("{} rank {} {} {}: {}\n", std::string_view(time.data(), time.size()),
                    rank < 0 ? "?" : fmt::to_string(rank),
                    std::string_view(message.logger_name.data(), message.logger_name.size()),
                    level_names.at(static_cast<size_t>(message.level)),
                    printable({message.payload.data(), message.payload.size()}));
    if (::write(target(rank), line.data(), line.size()) < 0)
      spdlog::throw_spdlog_ex("cannot write a line of --log", errno);
  }
  void flush_() override {}

  int target(int rank) {
    if (folder_.empty()) return STDERR_FILENO;
    FileDescriptor& file = files_[rank];
    if (!file.open()) {
      const auto path = folder_ / (rank < 0 ? "no_rank.log" : fmt::format("rank_{}.log", rank));
      file = FileDescriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
      if (!file.open()) spdlog::throw_spdlog_ex("cannot open " + path.string(), errno);
    }
    return file.get();
  }

  const std::filesystem::path folder_;
  std::map<int, FileDescriptor> files_;
};

using Loggers = std::array<std::shared_ptr<spdlog::logger>, subsystem_names.size()>;

Loggers& loggers() {
  static Loggers all = [] {
    Loggers made;
    for (size_t i = 0; i < made.size(); ++i) {
      made.at(i) = std::make_shared<spdlog::logger>(std::string(subsystem_names.at(i)));
      made.at(i)->set_level(spdlog::level::off);
    }
    return made;
  }();
  return all;
}

template <size_t count>
std::optional<size_t> place_of(const std::array<std::string_view, count>& names, std::string_view name) {
  const auto found = std::ranges::find(names, name);
  return found == names.end() ? std::nullopt : std::optional<size_t>(found - names.begin());
}

void set_level(const std::string& wanted) {
  const size_t sign = wanted.find('=');
  const std::string level = sign == std::string::npos ? wanted : wanted.substr(sign + 1);
  const auto value = place_of(level_names, level);
  if (!value)
    throw UsageError(fmt::format("--log {}: '{}' is no level; the levels are {}", wanted, level,
                                 fmt::join(level_names, ", ")));
  std::optional<size_t> only;
  if (sign != std::string::npos) {
    only = place_of(subsystem_names, wanted.substr(0, sign));
    if (!only)
      throw UsageError(fmt::format("--log {}: '{}' is no subsystem; the subsystems are {}", wanted,
                                   wanted.substr(0, sign), fmt::join(subsystem_names, ", ")));
  }
  for (size_t i = 0; i < subsystem_names.size(); ++i)
    if (!only || i == *only) loggers().at(i)->set_level(static_cast<spdlog::level::level_enum>(*value));
}

}  // namespace

spdlog::logger& log_of(Subsystem subsystem) {
  return *loggers()[static_cast<size_t>(subsystem)];
}

void turn_on_logs(std::span<const std::string> wanted, const std::filesystem::path& folder, int rank) {
  if (wanted.empty()) return;
  for (const std::string& one : wanted) set_level(one);
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) throw UsageError(fmt::format("--log-dir {}: {}", folder.string(), error.message()));
  rank_of_process = rank;
  const auto sink = std::make_shared<RankSink>(folder);
  for (const auto& logger : loggers()) logger->sinks() = {sink};
}

int log_rank() {
  return rank_of_thread >= 0 ? rank_of_thread : rank_of_process.load();
}

LogRank::LogRank(int rank) : before_(rank_of_thread) {
  rank_of_thread = rank;
}

LogRank::~LogRank() {
  rank_of_thread = before_;
}

}  // namespace pptrain
