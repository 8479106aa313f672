#include "app/run/live_requests.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {
constexpr std::chrono::milliseconds between_listings{500};
}

LiveRequests::LiveRequests(fs::path run_dir, LockHolder self)
    : run_dir_(std::move(run_dir)), self_(std::move(self)) {
  try {
    make_requests_folder(run_dir_);
  } catch (const std::exception& error) {
    spdlog::warn("pptrain save and pptrain stop cannot ask this run: {}", error.what());
  }
  remove_old_answers(run_dir_);
  search();
}

LiveRequests::~LiveRequests() {
  search();  // what came during the last step
  for (const Request& request : seen_) withdraw(run_dir_, request);
  const std::lock_guard lock(mutex_);
  for (const Agreed& agreed : agreed_) withdraw(run_dir_, agreed.request);
}

void LiveRequests::look() {
  const auto now = Clock::now();
  if (now - looked_ < between_listings) return;
  looked_ = now;
  search();
}

void LiveRequests::search() {
  const fs::path folder = requests_folder(run_dir_);
  std::error_code error;
  if (fs::symlink_status(folder, error).type() != fs::file_type::directory) return;
  std::vector<fs::path> files;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (is_request_name(name) && !known_.contains(name)) files.push_back(entry->path());
  }
  std::ranges::sort(files);
  for (const fs::path& file : files) take(file);
}

void LiveRequests::take(const fs::path& file) {
  try {
    Request request = read_request(file);
    known_.insert(request.file_name());
    if (!request.run.same_process(self_)) {
      spdlog::info("discarded a request for an earlier run: {}", request.describe());
      withdraw(run_dir_, request);
      return;
    }
    spdlog::info("request: {}", request.describe());
    seen_.push_back(std::move(request));
  } catch (const std::exception& error) {
    std::error_code gone;
    if (!fs::exists(fs::symlink_status(file, gone))) return;  // it was withdrawn
    known_.insert(file.filename().string());
    ignore(error.what());
  }
}

void LiveRequests::ignore(const std::string& reason) {
  if (!std::exchange(told_of_ignored_, true))
    spdlog::warn("a request is ignored: {}. Others like it are not mentioned", reason);
}

bool LiveRequests::wants(RequestKind kind) const {
  return std::ranges::count(seen_, kind, &Request::kind) > 0;
}

void LiveRequests::agreed(int64_t step) {
  const std::lock_guard lock(mutex_);
  for (Request& request : seen_) agreed_.push_back({std::move(request), step});
  seen_.clear();
}

void LiveRequests::saved(int64_t step, const std::string& checkpoint, const std::string& failure) {
  std::vector<Agreed> answered;
  {
    const std::lock_guard lock(mutex_);
    const auto rest = std::ranges::partition(agreed_, [&](const Agreed& a) { return a.step > step; });
    answered.assign(rest.begin(), rest.end());
    agreed_.erase(rest.begin(), rest.end());
  }
  const Answer answer{.done = failure.empty(), .step = step, .checkpoint = checkpoint, .message = failure};
  for (const Agreed& each : answered) reply(each.request, answer);
}

void LiveRequests::reply(const Request& request, const Answer& given) const {
  try {
    answer(run_dir_, request, given);
  } catch (const std::exception& error) {
    spdlog::warn("a request is not answered: {}", error.what());
  }
}

}  // namespace pptrain::app
